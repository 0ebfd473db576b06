// Modules, kernels and launches of the remote driver. A kernel's parameter layout is fetched once, with its
// handle; a launch is then one command that nobody waits for.
#include <algorithm>
#include <cstring>

#include "cuda/fatbin.h"
#include "pool/remote/client_impl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {

struct Image {
  std::vector<std::span<const std::byte>> parts;
  std::uint32_t containers = 0;  ///< 0: `parts` is one plain image
};

/// What has to travel of an image as a program passes it: a wrapper's containers, or the image itself.
bool find_image(const void* image, std::size_t size, Image& out) {
  std::uint32_t magic = 0;
  const auto* bytes = static_cast<const std::byte*>(image);
  if (size == 0 || size >= sizeof magic) {
    // An image of unknown size has at least one byte; a shorter one than a magic number ends in its NUL.
    const std::size_t safe =
        size == 0 ? strnlen(static_cast<const char*>(image), sizeof magic) : sizeof magic;
    if (safe == sizeof magic || size != 0) std::memcpy(&magic, image, sizeof magic);
  }
  // A wrapper holds pointers: it is followed only where the program passes one, not where bytes were counted.
  if (magic == cuda::fatbin_wrapper_magic && size == 0) {
    auto containers = cuda::fatbin_containers(image);
    if (!containers || containers->empty()) return false;
    out = {std::move(*containers), 0};
    out.containers = static_cast<std::uint32_t>(out.parts.size());
    return true;
  }
  if (size == 0) {
    size = magic == cuda::fatbin_container_magic ? cuda::fatbin_size({bytes, 16})
                                                 : std::strlen(static_cast<const char*>(image)) + 1;
  }
  out = {{{bytes, size}}, 0};
  return size != 0;
}

}  // namespace

Status RemoteDriverImpl::module_load_data(cuda::Module* module, const void* image, std::size_t size) {
  if (module == nullptr || image == nullptr) return Status::invalid_value;
  Image parts;
  if (!find_image(image, size, parts)) return Status::invalid_image;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  auto& device = *target.device;
  const auto handle = device.modules.add({target.context});
  std::uint64_t total = 0;
  const auto send = [&](std::span<const std::byte> bytes) {
    constexpr std::size_t piece = batch_capacity / 2;
    total += bytes.size();
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece, bytes.size()))) {
      if (!device.lane.issue(target.context,
                             ModuleData{handle.index(), bytes.first(std::min(piece, bytes.size()))}))
        return;
    }
  };
  for (const auto part : parts.parts) {
    const std::uint64_t bytes = part.size();
    if (parts.containers != 0) send(std::as_bytes(std::span(&bytes, 1)));
    send(part);
  }
  Reply reply;
  const auto status = ask(target, ModuleLoad{0, handle.index(), total, parts.containers}, &reply);
  if (!device.lane.lost()) device.known_free = reply.a;  // its variables are memory of the device, too
  if (status != Status::success) {
    device.modules.remove(handle);
    return status;
  }
  *module = handle.as<cuda::Module>();
  return Status::success;
}

void RemoteDriverImpl::drop_module(RemoteDevice& device, Handle module) {
  auto* entry = device.modules.get(module);
  for (const auto base : entry->globals) device.globals.erase(base);
  for (const auto& [name, function] : entry->functions) device.functions.remove(Handle{function});
  device.modules.remove(module);
}

Status RemoteDriverImpl::module_unload(cuda::Module module) {
  const Call call(*this);
  const auto handle = Handle::of(module);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->modules.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  const Target target{device, entry->context, 0};
  drop_module(*device, handle);
  const auto told = tell(target, ModuleUnload{handle.index()});
  const auto status = well(*device, target.context);
  return status == Status::success ? told : status;
}

Status RemoteDriverImpl::module_get_function(cuda::Function* function, cuda::Module module,
                                             const char* name) {
  if (function == nullptr || name == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto handle = Handle::of(module);
  auto* device = device_of(handle);
  auto* entry = device == nullptr ? nullptr : device->modules.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  const Target target{device, entry->context, 0};
  if (const auto status = well(*device, target.context); status != Status::success) return status;
  if (const auto known = entry->functions.find(std::string_view(name)); known != entry->functions.end()) {
    *function = Handle{known->second}.as<cuda::Function>();
    return Status::success;
  }
  if (std::strlen(name) > batch_capacity / 2) return Status::not_found;
  const auto made = device->functions.add({target.context, handle.bits});
  Reply reply;
  auto status = ask(target, FunctionGet{0, handle.index(), made.index(), name}, &reply);
  auto described = unpack_function(reply.blob);
  if (status == Status::success && !described) status = explain(Status::unknown, described.error().message());
  auto* fresh = device->functions.get(made);
  entry = device->modules.get(handle);
  if (status == Status::success && (entry == nullptr || fresh == nullptr)) status = Status::invalid_handle;
  if (status != Status::success) {
    device->functions.remove(made);
    return status;
  }
  fresh->params = std::move(described->params);
  for (const auto& param : fresh->params)
    fresh->param_bytes = std::max(fresh->param_bytes, param.offset + param.size);
  fresh->attributes.insert(described->attributes.begin(), described->attributes.end());
  fresh->max_threads = static_cast<unsigned>(
      fresh->attributes[static_cast<int>(cuda::FunctionAttribute::max_threads_per_block)]);
  fresh->max_dynamic_shared = static_cast<unsigned>(
      fresh->attributes[static_cast<int>(cuda::FunctionAttribute::max_dynamic_shared_size_bytes)]);
  entry->functions.emplace(name, made.bits);
  *function = made.as<cuda::Function>();
  return Status::success;
}

Status RemoteDriverImpl::module_get_global(cuda::DevicePtr* pointer, std::size_t* bytes, cuda::Module module,
                                           const char* name) {
  if (name == nullptr || (pointer == nullptr && bytes == nullptr)) return Status::invalid_value;
  const Call call(*this);
  const auto handle = Handle::of(module);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->modules.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  const Target target{device, entry->context, 0};
  if (const auto status = well(*device, target.context); status != Status::success) return status;
  if (std::strlen(name) > batch_capacity / 2) return Status::not_found;
  Reply reply;
  const auto status = ask(target, ModuleGlobal{0, handle.index(), name}, &reply);
  if (status != Status::success) return status;
  if (auto* still = device->modules.get(handle); still != nullptr && !device->globals.contains(reply.a)) {
    still->globals.push_back(reply.a);
    device->globals[reply.a] = reply.b;
  }
  if (pointer != nullptr) *pointer = reply.a;
  if (bytes != nullptr) *bytes = reply.b;
  return Status::success;
}

Status RemoteDriverImpl::func_get_attribute(int* value, cuda::FunctionAttribute attribute,
                                            cuda::Function function) {
  if (value == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto handle = Handle::of(function);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->functions.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  if (const auto known = entry->attributes.find(static_cast<int>(attribute));
      known != entry->attributes.end()) {
    *value = known->second;
    return Status::success;
  }
  Reply reply;
  const auto status =
      ask({device, entry->context, 0}, FunctionAttr{0, handle.index(), static_cast<int>(attribute)}, &reply);
  if (status == Status::success) *value = static_cast<int>(reply.a);
  return status;
}

Status RemoteDriverImpl::func_set_attribute(cuda::Function function, cuda::FunctionAttribute attribute,
                                            int value) {
  const Call call(*this);
  const auto handle = Handle::of(function);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->functions.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  const auto status =
      ask({device, entry->context, 0}, FunctionSet{0, handle.index(), static_cast<int>(attribute), value});
  if (status != Status::success) return status;
  auto* changed = device->functions.get(handle);
  if (changed == nullptr) return Status::invalid_handle;
  changed->attributes[static_cast<int>(attribute)] = value;
  if (attribute == cuda::FunctionAttribute::max_dynamic_shared_size_bytes)
    changed->max_dynamic_shared = static_cast<unsigned>(value);
  return Status::success;
}

Status RemoteDriverImpl::func_get_param_info(cuda::ParamInfo* info, cuda::Function function,
                                             std::size_t index) {
  if (info == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto handle = Handle::of(function);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->functions.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  if (index >= entry->params.size()) return Status::invalid_value;
  *info = entry->params[index];
  return Status::success;
}

Status RemoteDriverImpl::launch(cuda::Function function, const cuda::LaunchConfig& config,
                                cuda::Stream stream, void** params, const void* packed,
                                std::size_t packed_bytes) {
  const Call call(*this);
  const auto handle = Handle::of(function);
  auto* device = device_of(handle);
  const auto* kernel = device == nullptr ? nullptr : device->functions.get(handle);
  if (kernel == nullptr) return Status::invalid_handle;
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  if (target.device != device || target.context != kernel->context)
    return Handle::of(stream).bits <= 2 ? Status::invalid_context : Status::invalid_handle;
  std::uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (config.grid[i] == 0 || config.block[i] == 0 || config.grid[i] > device->max_grid[i] ||
        config.block[i] > device->max_block[i])
      return Status::invalid_value;
    threads *= config.block[i];
  }
  if (threads > device->max_threads || config.shared_bytes > kernel->max_dynamic_shared)
    return Status::invalid_value;
  if (threads > kernel->max_threads) return Status::launch_out_of_resources;

  alignas(16) std::byte gathered[max_param_bytes];
  Blob blob{gathered, kernel->param_bytes};
  if (packed != nullptr) {
    if (packed_bytes < kernel->param_bytes || packed_bytes > max_param_bytes) return Status::invalid_value;
    blob = {static_cast<const std::byte*>(packed), kernel->param_bytes};
  } else {
    if (!kernel->params.empty() && params == nullptr) return Status::invalid_value;
    std::size_t end = 0;
    for (std::size_t i = 0; i < kernel->params.size(); ++i) {
      const auto& param = kernel->params[i];
      if (params[i] == nullptr)
        return explain(Status::invalid_value, "argument " + std::to_string(i) + " of the kernel is NULL");
      if (param.offset > end) std::memset(gathered + end, 0, param.offset - end);
      std::memcpy(gathered + param.offset, params[i], param.size);
      end = param.offset + param.size;
    }
  }
  ++device->lane.counters().launches;
  return tell(target, Launch{handle.index(), target.stream, config.grid[0], config.grid[1], config.grid[2],
                             config.block[0], config.block[1], config.block[2], config.shared_bytes, blob});
}

Status RemoteDriverImpl::launch_kernel(cuda::Function function, const cuda::LaunchConfig& config,
                                       cuda::Stream stream, void** params) {
  return launch(function, config, stream, params, nullptr, 0);
}

Status RemoteDriverImpl::launch_kernel_packed(cuda::Function function, const cuda::LaunchConfig& config,
                                              cuda::Stream stream, const void* buffer, std::size_t bytes) {
  if (buffer == nullptr && bytes != 0) return Status::invalid_value;
  static constexpr std::byte nothing{};
  return launch(function, config, stream, nullptr, buffer == nullptr ? &nothing : buffer, bytes);
}

}  // namespace cenote::pool::remote
