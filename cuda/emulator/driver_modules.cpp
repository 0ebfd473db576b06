// Modules, functions and launches.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/emulator/driver_state.h"
#include "cuda/emulator/launch.h"

namespace cenote::cuda::emulator {
namespace {

constexpr std::size_t kPlainShared = 48 << 10;  // more needs func_set_attribute
constexpr unsigned kMostThreads = 1024;
constexpr std::array<unsigned, 3> kMostBlock = {1024, 1024, 64};
constexpr std::array<unsigned, 3> kMostGrid = {2147483647, 65535, 65535};
constexpr std::size_t kInlineParams = 112;

/// The packed parameters of one launch: in place where they are few.
class Params {
 public:
  explicit Params(std::size_t bytes) : bytes_(bytes) {
    if (bytes > kInlineParams) spill_.resize(bytes);
  }
  std::byte* data() { return spill_.empty() ? inline_ : spill_.data(); }
  std::span<const std::byte> span() { return {data(), bytes_}; }

 private:
  std::size_t bytes_;
  std::byte inline_[kInlineParams];
  std::vector<std::byte> spill_;
};

std::string three(const unsigned (&v)[3]) {
  return "(" + std::to_string(v[0]) + "," + std::to_string(v[1]) + "," + std::to_string(v[2]) + ")";
}

Dim3 dim(const unsigned (&v)[3]) { return {v[0], v[1], v[2]}; }

}  // namespace

Status EmulatedDriver::place_variables(const Entered& in, ModuleState& module) {
  const auto& variables = module.program->variables;
  for (const auto& variable : variables) {
    DevicePtr address = 0;
    const auto status = allocate(in, std::max<std::size_t>(variable.size, 1), true, address);
    if (status != Status::success) return status;
    module.variables.push_back(address);
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto& variable = variables[i];
    const auto pieces = state_->space.resolve(module.variables[i], std::max<std::size_t>(variable.size, 1));
    auto* host = pieces[0].host;
    std::memset(host, 0, variable.size);
    std::copy_n(variable.initial.data(), std::min(variable.initial.size(), variable.size), host);
    for (const auto& fix : variable.relocations) {
      const auto value = module.variables[fix.target] + static_cast<std::uint64_t>(fix.addend);
      if (fix.offset <= variable.size &&
          fix.bytes <= std::min<std::size_t>(sizeof(value), variable.size - fix.offset)) {
        std::memcpy(host + fix.offset, &value, fix.bytes);
      }
    }
  }
  return Status::success;
}

void EmulatedDriver::free_variables(const ModuleState& module) {
  for (const auto address : module.variables) {
    if (auto gone = state_->space.remove(address, [](const Region& r) { return r.module; }))
      release_region(*gone);
  }
}

Status EmulatedDriver::module_load_data(Module* module, const void* image, std::size_t size) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (module == nullptr || image == nullptr) return Status::invalid_value;
  const auto& model = device(in.context->device())->model;
  auto loaded = std::make_shared<ModuleState>();
  loaded->context = in.context->id();
  auto refusal = load_program(image, size, model.major, model.minor, loaded->program);
  if (refusal.status != Status::success) return refuse(*in.thread, refusal.status, std::move(refusal.detail));
  if (const auto status = place_variables(in, *loaded); status != Status::success) {
    free_variables(*loaded);
    return status;
  }
  *module = state_->modules.put(std::move(loaded));
  return Status::success;
}

Status EmulatedDriver::module_unload(Module module) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  auto state = state_->modules.take(module);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such module, or it was unloaded");
  state_->functions.take_if([&](const FunctionState& function) { return function.module == state; });
  if (auto owner = context_by_id(state->context)) owner->synchronize();
  free_variables(*state);
  return Status::success;
}

Status EmulatedDriver::module_get_function(Function* function, Module module, const char* name) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (function == nullptr || name == nullptr) return Status::invalid_value;
  auto state = state_->modules.get(module);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such module, or it was unloaded");
  const auto entry = state->program->find_entry(name);
  if (!entry) return refuse(*in.thread, Status::not_found, "the module has no kernel " + std::string(name));
  auto made = std::make_shared<FunctionState>();
  made->entry = *entry;
  made->module = std::move(state);
  const auto fixed = std::min(made->code().shared_bytes, kPlainShared);
  made->dynamic_shared.store(static_cast<int>(kPlainShared - fixed), std::memory_order_relaxed);
  *function = state_->functions.put(std::move(made));
  return Status::success;
}

Status EmulatedDriver::module_get_global(DevicePtr* pointer, std::size_t* bytes, Module module,
                                         const char* name) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (name == nullptr || (pointer == nullptr && bytes == nullptr)) return Status::invalid_value;
  const auto state = state_->modules.get(module);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such module, or it was unloaded");
  const auto index = state->program->find_variable(name);
  if (!index) return refuse(*in.thread, Status::not_found, "the module has no variable " + std::string(name));
  if (pointer != nullptr) *pointer = state->variables[*index];
  if (bytes != nullptr) *bytes = state->program->variables[*index].size;
  return Status::success;
}

Status EmulatedDriver::func_get_attribute(int* value, FunctionAttribute attribute, Function function) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (value == nullptr) return Status::invalid_value;
  const auto state = state_->functions.get(function);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such function, or it was unloaded");
  const auto& code = state->code();
  const auto& program = *state->module->program;
  const auto& model = device(in.context->device())->model;
  switch (attribute) {
    case FunctionAttribute::max_threads_per_block:
      *value =
          static_cast<int>(code.max_threads != 0 ? std::min(code.max_threads, kMostThreads) : kMostThreads);
      return Status::success;
    case FunctionAttribute::shared_size_bytes:
      *value = static_cast<int>(code.shared_bytes);
      return Status::success;
    case FunctionAttribute::const_size_bytes: {
      std::size_t total = 0;
      for (const auto& v : program.variables) total += v.space == ptx::VariableSpace::constant ? v.size : 0;
      *value = static_cast<int>(total);
      return Status::success;
    }
    case FunctionAttribute::local_size_bytes:
      *value = static_cast<int>(code.local_bytes);
      return Status::success;
    case FunctionAttribute::num_regs:
      *value = static_cast<int>(code.registers);
      return Status::success;
    case FunctionAttribute::ptx_version:
      *value = architecture_of(program.target);
      return Status::success;
    case FunctionAttribute::binary_version:
      *value = model.major * 10 + model.minor;
      return Status::success;
    case FunctionAttribute::max_dynamic_shared_size_bytes:
      *value = state->dynamic_shared.load(std::memory_order_relaxed);
      return Status::success;
  }
  return refuse(*in.thread, Status::invalid_value, "the emulated driver has no such function attribute");
}

Status EmulatedDriver::func_set_attribute(Function function, FunctionAttribute attribute, int value) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto state = state_->functions.get(function);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such function, or it was unloaded");
  if (attribute != FunctionAttribute::max_dynamic_shared_size_bytes) {
    return refuse(*in.thread, Status::invalid_value, "that attribute is read only");
  }
  const auto most = device(in.context->device())->model.shared_optin_bytes;
  if (value < 0 ||
      state->code().shared_bytes + static_cast<std::size_t>(value) > static_cast<std::size_t>(most)) {
    return refuse(*in.thread, Status::invalid_value,
                  "static and dynamic shared memory together are at most " + std::to_string(most) + " bytes");
  }
  state->dynamic_shared.store(value, std::memory_order_relaxed);
  return Status::success;
}

Status EmulatedDriver::func_get_param_info(ParamInfo* info, Function function, std::size_t index) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (info == nullptr) return Status::invalid_value;
  const auto state = state_->functions.get(function);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such function, or it was unloaded");
  const auto& params = state->code().params;
  if (index >= params.size()) return Status::invalid_value;
  *info = {params[index].offset, params[index].size};
  return Status::success;
}

Status EmulatedDriver::check_launch(const Entered& in, const FunctionState& function,
                                    const LaunchConfig& config) const {
  const auto& code = function.code();
  if (function.module->context != in.context->id()) {
    return refuse(*in.thread, Status::invalid_context,
                  "kernel " + code.name + " was loaded in another context");
  }
  std::uint64_t threads = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    if (config.grid[i] == 0 || config.grid[i] > kMostGrid[i] || config.block[i] == 0 ||
        config.block[i] > kMostBlock[i]) {
      return refuse(*in.thread, Status::invalid_value,
                    "kernel " + code.name + ": grid " + three(config.grid) + " of blocks " +
                        three(config.block) + " is outside of what the card runs");
    }
    threads *= config.block[i];
  }
  if (threads > kMostThreads) {
    return refuse(
        *in.thread, Status::invalid_value,
        "kernel " + code.name + ": a block of " + std::to_string(threads) + " threads; the most is 1024");
  }
  if (code.max_threads != 0 && threads > code.max_threads) {
    return refuse(*in.thread, Status::launch_out_of_resources,
                  "kernel " + code.name + " was compiled for blocks of at most " +
                      std::to_string(code.max_threads) + " threads, not " + std::to_string(threads));
  }
  const auto dynamic = static_cast<std::size_t>(function.dynamic_shared.load(std::memory_order_relaxed));
  const auto most = static_cast<std::size_t>(device(in.context->device())->model.shared_optin_bytes);
  if (config.shared_bytes > dynamic || code.shared_bytes + config.shared_bytes > most) {
    return refuse(*in.thread, Status::invalid_value,
                  "kernel " + code.name + ": " + std::to_string(config.shared_bytes) +
                      " bytes of dynamic shared memory and " + std::to_string(code.shared_bytes) +
                      " of static; the kernel's limit is " + std::to_string(dynamic) +
                      " dynamic (func_set_attribute), the card's " + std::to_string(most) + " together");
  }
  return Status::success;
}

Status EmulatedDriver::launch(const Entered& in, std::shared_ptr<FunctionState> function,
                              const LaunchConfig& config, Stream on, const std::byte* packed, void** params) {
  if (const auto status = check_launch(in, *function, config); status != Status::success) return status;
  const auto target = stream(in, on);
  if (!target) return Status::invalid_handle;
  if (target->context.get() != in.context) {
    return refuse(*in.thread, Status::invalid_handle,
                  "the stream belongs to another context than the kernel");
  }
  const auto& code = function->code();
  Params buffer(code.param_bytes);
  if (packed != nullptr) {
    std::memcpy(buffer.data(), packed, code.param_bytes);
  } else {
    std::memset(buffer.data(), 0, code.param_bytes);
    for (std::size_t i = 0; i < code.params.size(); ++i) {
      if (params == nullptr || params[i] == nullptr) {
        return refuse(*in.thread, Status::invalid_value,
                      "kernel " + code.name + " takes " + std::to_string(code.params.size()) +
                          " parameters; parameter " + std::to_string(i) + " is missing");
      }
      std::memcpy(buffer.data() + code.params[i].offset, params[i], code.params[i].size);
    }
  }
  return enqueue(
      in, *target,
      Task([function = std::move(function), buffer = std::move(buffer), config, context = in.context,
            state = state_]() mutable { state->run_kernel(*context, *function, config, buffer.span()); }));
}

void EmulatedDriver::State::run_kernel(ContextState& context, const FunctionState& function,
                                       const LaunchConfig& config, std::span<const std::byte> params) {
  const auto view = context.view(space);
  Launch launch;
  launch.program = function.module->program.get();
  launch.entry = function.entry;
  launch.grid = dim(config.grid);
  launch.block = dim(config.block);
  launch.shared_bytes = config.shared_bytes;
  launch.params = params;
  launch.variables = function.module->variables;
  launch.memory = view->ranges;
  launch.cancel = &context.faults().cancel;
  launch.threads = devices[static_cast<std::size_t>(context.device())].worker_threads;
  launch.print = [this](std::string_view text) { print(text); };
  auto outcome = run(launch);
  if (outcome.status == Status::success || context.faults().cancel.raised()) return;
  context.faults().raise(outcome.status, outcome.fault
                                             ? std::move(outcome.fault->text)
                                             : "kernel " + function.code().name + " did not finish");
}

Status EmulatedDriver::launch_kernel(Function function, const LaunchConfig& config, Stream stream,
                                     void** params) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  auto state = state_->functions.get(function);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such function, or it was unloaded");
  return launch(in, std::move(state), config, stream, nullptr, params);
}

Status EmulatedDriver::launch_kernel_packed(Function function, const LaunchConfig& config, Stream stream,
                                            const void* buffer, std::size_t bytes) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  auto state = state_->functions.get(function);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such function, or it was unloaded");
  const auto needed = state->code().param_bytes;
  if (bytes < needed || (buffer == nullptr && needed > 0)) {
    return refuse(*in.thread, Status::invalid_value,
                  "kernel " + state->code().name + " takes " + std::to_string(needed) +
                      " bytes of parameters, not " + std::to_string(bytes));
  }
  static constexpr std::byte kNone{};
  return launch(in, std::move(state), config, stream,
                needed > 0 ? static_cast<const std::byte*>(buffer) : &kNone, nullptr);
}

}  // namespace cenote::cuda::emulator
