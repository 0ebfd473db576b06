// A lane's modules, kernels and launches.
#include <algorithm>
#include <cstring>

#include "cuda/fatbin.h"
#include "pool/remote/device_info.h"
#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {

constexpr std::size_t most_image = std::size_t{256} << 20;
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

}  // namespace

Result<void> WorkerLane::on(const ModuleData& c) {
  if (c.module >= most_handles) return fail(ErrorCode::protocol_error, "load module", "too many modules");
  if (c.module >= modules_.size()) modules_.resize(c.module + 1);
  auto& slot = modules_[c.module];
  if (slot.live) return fail(ErrorCode::protocol_error, "load module", "module number in use");
  if (slot.image.size() + c.bytes.size() > most_image)
    return fail(ErrorCode::protocol_error, "load module", "its image is larger than 256 MiB");
  slot.image.insert(slot.image.end(), c.bytes.begin(), c.bytes.end());
  return {};
}

Result<void> WorkerLane::on(const ModuleLoad& c) {
  auto* slot = make_slot(modules_, c.module);
  if (slot == nullptr) return answer_text(c.request, Status::invalid_value, 0, 0, "module number in use");
  Bytes image = std::exchange(slot->image, {});
  if (image.size() != c.bytes || image.empty() || c.containers > most_containers)
    return answer_text(c.request, Status::invalid_image, 0, 0, "the image did not arrive whole");
  auto status = enter(context_);
  cuda::Module made = nullptr;
  if (c.containers != 0) {
    std::vector<std::vector<std::uint64_t>> containers;
    if (!split(image, c.containers, containers))
      return answer_text(c.request, Status::invalid_image, 0, 0, "a container is damaged");
    std::vector<const void*> pointers;
    for (const auto& container : containers) pointers.push_back(container.data());
    pointers.push_back(nullptr);
    Wrapper wrapper;
    wrapper.version = c.containers == 1 ? 1 : 2;
    wrapper.data = pointers.front();
    wrapper.extra = c.containers == 1 ? nullptr : static_cast<const void*>(pointers.data());
    if (status == Status::success) status = shared_.driver.module_load_data(&made, &wrapper, 0);
  } else {
    const auto size = image.size();
    // A wrapper holds pointers, which mean nothing from another process.
    std::uint32_t magic = 0;
    if (size >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
    if (magic == cuda::fatbin_wrapper_magic)
      return answer_text(c.request, Status::invalid_image, 0, 0, "a wrapper cannot travel");
    image.push_back(std::byte{0});  // PTX ends in a NUL, whatever the client sent
    if (status == Status::success) status = shared_.driver.module_load_data(&made, image.data(), size);
  }
  if (status == Status::success) {
    slot->handle = made;
    slot->context = context_;
    slot->live = true;
  }
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const ModuleUnload& c) {
  auto* slot = live_slot(modules_, c.module);
  if (slot == nullptr) return tell_error(context_, Status::invalid_handle, "no such module");
  // Kernels of the module may be running.
  drain_then([this, number = c.module]() -> Result<void> {
    auto* gone = live_slot(modules_, number);
    if (gone == nullptr) return {};
    for (auto& function : functions_) {
      if (function.live && function.module == number) function = {};
    }
    for (const auto base : gone->globals) globals_.erase(base);
    auto status = enter(gone->context);
    if (status == Status::success) status = shared_.driver.module_unload(gone->handle);
    *gone = {};
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
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (slot == nullptr || !find_stream(c.stream, stream, context))
    return tell_error(context_, Status::invalid_handle, "launch: no such function or stream");
  if (c.params.size() != slot->param_bytes)
    return fail(ErrorCode::protocol_error, "launch",
                std::to_string(c.params.size()) + " bytes of parameters for a kernel with " +
                    std::to_string(slot->param_bytes));
  const cuda::LaunchConfig config{
      {c.grid_x, c.grid_y, c.grid_z}, {c.block_x, c.block_y, c.block_z}, c.shared_bytes};
  auto status = enter(context);
  if (status == Status::success)
    status =
        shared_.driver.launch_kernel_packed(slot->handle, config, stream, c.params.data(), c.params.size());
  launches_.fetch_add(1, std::memory_order_relaxed);
  if (status != Status::success) return tell_error(context, status, detail_of());
  worked(stream, c.stream, context);
  return {};
}

}  // namespace cenote::pool::remote
