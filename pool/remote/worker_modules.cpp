// A lane's modules, kernels and launches.
#include <algorithm>
#include <cstring>

#include "cuda/fatbin.h"
#include "pool/remote/device_info.h"
#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {

constexpr std::uint32_t most_containers = 4096;

/// A wrapper as programs pass it (fatbinary_section.h), around containers that arrived one by one.
struct Wrapper {
  std::uint32_t magic = cuda::fatbin_wrapper_magic;
  std::uint32_t version = 1;
  const void* data = nullptr;
  const void* extra = nullptr;
};

/// Splits an image of `count` containers, each behind its length; copies them to aligned memory.
bool split(std::span<const std::byte> image, std::uint32_t count,
           std::vector<std::vector<std::uint64_t>>& out) {
  Reader in(image);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto size = in.get<std::uint64_t>();
    const auto bytes = size <= in.left() ? in.raw(size) : std::span<const std::byte>{};
    if (in.bad() || bytes.size() < 16 || cuda::fatbin_size(bytes.first(16)) > bytes.size() ||
        cuda::fatbin_size(bytes.first(16)) == 0)
      return false;
    auto& aligned = out.emplace_back((bytes.size() + 7) / 8);
    std::memcpy(aligned.data(), bytes.data(), bytes.size());
  }
  return in.finished() && count != 0;
}

/// What the driver may make of the image's compressed parts in this process.
std::uint64_t decompressed_bytes(std::span<const std::byte> image, std::uint32_t count) {
  if (count == 0) return cuda::fatbin_decompressed_size(image);
  std::uint64_t total = 0;
  Reader in(image);
  while (!in.bad() && in.left() != 0) {
    const auto size = in.get<std::uint64_t>();
    if (size > in.left()) break;
    const auto part = cuda::fatbin_decompressed_size(in.raw(size));
    total = part > UINT64_MAX - total ? UINT64_MAX : total + part;
  }
  return total;
}

}  // namespace

bool WorkerLane::keep(ModuleSlot& slot, std::uint64_t bytes) {
  if (bytes > shared_.options.module_bytes || shared_.module_bytes > shared_.options.module_bytes - bytes)
    return false;
  shared_.module_bytes += bytes;
  slot.kept += bytes;
  return true;
}

void WorkerLane::forget_module(std::uint32_t module) {
  auto& gone = modules_[module];
  for (auto& function : functions_) {
    if (function.live && function.module == module) function = {};
  }
  for (const auto base : gone.globals) globals_.erase(base);
  used_ -= gone.charged;
  shared_.module_bytes -= gone.kept;
  gone = {};
}

Result<void> WorkerLane::on(const ModuleData& c) {
  if (c.module >= most_handles) return fail(ErrorCode::protocol_error, "load module", "too many modules");
  if (c.module >= modules_.size()) modules_.resize(c.module + 1);
  auto& slot = modules_[c.module];
  if (slot.live) return fail(ErrorCode::protocol_error, "load module", "module number in use");
  if (slot.refused || !keep(slot, c.bytes.size())) {
    slot.refused = true;
    Bytes().swap(slot.image);  // what still comes of it is dropped, too; module_load tells
    return {};
  }
  slot.image.insert(slot.image.end(), c.bytes.begin(), c.bytes.end());
  return {};
}

Status WorkerLane::load_image(std::span<const std::byte> image, std::uint32_t containers, cuda::Module& made,
                              std::string& why) {
  auto& driver = shared_.driver;
  if (containers == 0) {
    // A wrapper holds pointers, which mean nothing from another process.
    std::uint32_t magic = 0;
    if (image.size() > sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
    if (magic == cuda::fatbin_wrapper_magic) {
      why = "a wrapper cannot travel";
      return Status::invalid_image;
    }
    return driver.module_load_data(&made, image.data(), image.size() - 1);
  }
  std::vector<std::vector<std::uint64_t>> parts;
  if (!split(image.first(image.size() - 1), containers, parts)) {
    why = "a container is damaged";
    return Status::invalid_image;
  }
  std::vector<const void*> pointers;
  pointers.reserve(parts.size() + 1);
  for (const auto& part : parts) pointers.push_back(part.data());
  pointers.push_back(nullptr);
  Wrapper wrapper;
  wrapper.version = containers == 1 ? 1 : 2;
  wrapper.data = pointers.front();
  wrapper.extra = containers == 1 ? nullptr : static_cast<const void*>(pointers.data());
  return driver.module_load_data(&made, &wrapper, 0);
}

// A module's variables are memory of the device like any other. How much a module takes only the driver
// knows: what is free is read before and after.
Result<void> WorkerLane::on(const ModuleLoad& c) {
  auto* slot = make_slot(modules_, c.module);
  if (slot == nullptr) return answer_text(c.request, Status::invalid_value, 0, 0, "module number in use");
  Bytes image = std::exchange(slot->image, {});
  const auto refuse = [&](Status status, std::string_view why) {
    forget_module(c.module);
    return answer_text(c.request, status, free_memory(), 0, why);
  };
  if (slot->refused || !keep(*slot, decompressed_bytes(image, c.containers)))
    return refuse(Status::out_of_memory,
                  "the session's modules would take more of the worker's memory than " +
                      std::to_string(shared_.options.module_bytes) + " bytes");
  if (image.size() != c.bytes || image.empty() || c.containers > most_containers)
    return refuse(Status::invalid_image, "the image did not arrive whole");
  image.push_back(std::byte{0});  // PTX ends in a NUL, whatever the client sent
  shared_.announce();
  const auto before = free_on_device();
  cuda::Module made = nullptr;
  std::string why;
  auto status = enter(context_);
  if (status == Status::success) status = load_image(image, c.containers, made, why);
  if (status != Status::success) return refuse(status, why.empty() ? detail_of() : why);
  const auto after = free_on_device();
  const auto took = before > after ? before - after : 0;
  if (took > total_ || used_ > total_ - took) {
    if (enter(context_) == Status::success) shared_.driver.module_unload(made);
    return refuse(Status::out_of_memory, "the module's variables go beyond the lease's memory");
  }
  used_ += took;
  slot->charged = took;
  slot->handle = made;
  slot->context = context_;
  slot->live = true;
  return answer(c.request, status, free_memory(), 0);
}

Result<void> WorkerLane::on(const ModuleUnload& c) {
  auto* slot = live_slot(modules_, c.module);
  if (slot == nullptr) return tell_error(context_, Status::invalid_handle, "no such module");
  // Kernels of the module may be running.
  drain_then([this, number = c.module]() -> Result<void> {
    auto* gone = live_slot(modules_, number);
    if (gone == nullptr) return {};
    auto status = enter(gone->context);
    if (status == Status::success) status = shared_.driver.module_unload(gone->handle);
    forget_module(number);
    return check(status);
  });
  return {};
}

Result<void> WorkerLane::on(const ModuleGlobal& c) {
  auto* slot = live_slot(modules_, c.module);
  if (slot == nullptr) return answer_text(c.request, Status::invalid_handle, 0, 0, "no such module");
  cuda::DevicePtr base = 0;
  std::size_t bytes = 0;
  auto status = enter(slot->context);
  if (status == Status::success)
    status = shared_.driver.module_get_global(&base, &bytes, slot->handle, std::string(c.name).c_str());
  if (status == Status::success && bytes != 0 && globals_.emplace(base, bytes).second)
    slot->globals.push_back(base);
  return answer(c.request, status, base, bytes);
}

Result<void> WorkerLane::on(const FunctionGet& c) {
  auto* module = live_slot(modules_, c.module);
  if (module == nullptr) return answer_text(c.request, Status::invalid_handle, 0, 0, "no such module");
  auto* slot = make_slot(functions_, c.function);
  if (slot == nullptr) return answer_text(c.request, Status::invalid_value, 0, 0, "function number in use");
  auto& driver = shared_.driver;
  cuda::Function made = nullptr;
  auto status = enter(module->context);
  shared_.announce();  // a driver that loads lazily compiles here
  if (status == Status::success)
    status = driver.module_get_function(&made, module->handle, std::string(c.name).c_str());
  if (status != Status::success) return answer(c.request, status);
  FunctionDescription function;
  std::size_t param_bytes = 0;
  for (cuda::ParamInfo info{};
       driver.func_get_param_info(&info, made, function.params.size()) == Status::success;) {
    if (info.offset > max_param_bytes || info.size > max_param_bytes - info.offset)
      return answer_text(c.request, Status::not_supported, 0, 0,
                         "the kernel has more than 4096 bytes of parameters");
    function.params.push_back(info);
    param_bytes = std::max(param_bytes, info.offset + info.size);
  }
  for (const auto attribute : function_attributes) {
    int value = 0;
    if (driver.func_get_attribute(&value, attribute, made) == Status::success)
      function.attributes.emplace_back(static_cast<int>(attribute), value);
  }
  *slot = {made, c.module, param_bytes, true};
  return answer_blob(c.request, pack(function));
}

Result<void> WorkerLane::on(const FunctionAttr& c) {
  const auto* slot = live_slot(functions_, c.function);
  if (slot == nullptr) return answer_text(c.request, Status::invalid_handle, 0, 0, "no such function");
  int value = 0;
  auto status = enter(modules_[slot->module].context);
  if (status == Status::success)
    status = shared_.driver.func_get_attribute(&value, static_cast<cuda::FunctionAttribute>(c.attribute),
                                               slot->handle);
  return answer(c.request, status, static_cast<std::uint32_t>(value), 0);
}

Result<void> WorkerLane::on(const FunctionSet& c) {
  const auto* slot = live_slot(functions_, c.function);
  if (slot == nullptr) return answer_text(c.request, Status::invalid_handle, 0, 0, "no such function");
  auto status = enter(modules_[slot->module].context);
  if (status == Status::success)
    status = shared_.driver.func_set_attribute(slot->handle,
                                               static_cast<cuda::FunctionAttribute>(c.attribute), c.value);
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const Launch& c) {
  const auto* slot = live_slot(functions_, c.function);
  if (slot == nullptr) return tell_error(context_, Status::invalid_handle, "launch: no such function");
  if (c.params.size() != slot->param_bytes)
    return fail(ErrorCode::protocol_error, "launch",
                std::to_string(c.params.size()) + " bytes of parameters for a kernel with " +
                    std::to_string(slot->param_bytes));
  return in_stream(c.stream, "launch", [&](cuda::Stream stream) {
    launches_.fetch_add(1, std::memory_order_relaxed);
    const cuda::LaunchConfig config{
        {c.grid_x, c.grid_y, c.grid_z}, {c.block_x, c.block_y, c.block_z}, c.shared_bytes};
    return shared_.driver.launch_kernel_packed(slot->handle, config, stream, c.params.data(),
                                               c.params.size());
  });
}

}  // namespace cenote::pool::remote
