// Devices: names, sizes, attributes.
#include <algorithm>
#include <cstring>
#include <optional>

#include "cuda/emulator/driver_state.h"

namespace cenote::cuda::emulator {
namespace {

// Limits that are the same for all cards here.
std::optional<int> common_attribute(DeviceAttribute attribute) {
  switch (attribute) {
    case DeviceAttribute::max_threads_per_block:
    case DeviceAttribute::max_block_dim_x:
    case DeviceAttribute::max_block_dim_y:
      return 1024;
    case DeviceAttribute::max_block_dim_z:
      return 64;
    case DeviceAttribute::max_grid_dim_x:
      return 2147483647;
    case DeviceAttribute::max_grid_dim_y:
    case DeviceAttribute::max_grid_dim_z:
      return 65535;
    case DeviceAttribute::max_shared_memory_per_block:
      return 48 << 10;
    case DeviceAttribute::total_constant_memory:
      return 64 << 10;
    case DeviceAttribute::warp_size:
      return 32;
    case DeviceAttribute::integrated:
    case DeviceAttribute::compute_mode:
    case DeviceAttribute::managed_memory:
    case DeviceAttribute::pci_domain_id:
    case DeviceAttribute::pci_device_id:
      return 0;
    case DeviceAttribute::can_map_host_memory:
    case DeviceAttribute::concurrent_kernels:
    case DeviceAttribute::ecc_enabled:
    case DeviceAttribute::unified_addressing:
    case DeviceAttribute::virtual_memory_management:
      return 1;
    // Memory of mem_create is exported through IPC handles' kin only on real cards.
    case DeviceAttribute::handle_type_posix_file_descriptor:
      return 0;
    default:
      return std::nullopt;
  }
}

std::optional<int> model_attribute(const CardModel& model, DeviceAttribute attribute) {
  switch (attribute) {
    case DeviceAttribute::clock_rate_khz:
      return model.clock_khz;
    case DeviceAttribute::multiprocessor_count:
      return model.multiprocessors;
    case DeviceAttribute::memory_clock_khz:
      return model.memory_clock_khz;
    case DeviceAttribute::memory_bus_width:
      return model.memory_bus_bits;
    case DeviceAttribute::l2_cache_size:
      return model.l2_bytes;
    case DeviceAttribute::max_threads_per_multiprocessor:
      return model.threads_per_multiprocessor;
    case DeviceAttribute::async_engine_count:
      return model.async_engines;
    case DeviceAttribute::compute_capability_major:
      return model.major;
    case DeviceAttribute::compute_capability_minor:
      return model.minor;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      return model.shared_optin_bytes;
    case DeviceAttribute::gpu_direct_rdma:
    // 1 is also CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: the flush call exists.
    case DeviceAttribute::gpu_direct_rdma_flush_writes_options:
      return model.gpu_direct_rdma ? 1 : 0;
    // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE: what a NIC wrote is invisible until the flush.
    case DeviceAttribute::gpu_direct_rdma_writes_ordering:
      return 0;
    default:
      return std::nullopt;
  }
}

}  // namespace

Status EmulatedDriver::device_get_count(int* count) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (count == nullptr) return Status::invalid_value;
  *count = static_cast<int>(state_->devices.size());
  return Status::success;
}

Status EmulatedDriver::device_get(DeviceId* id, int ordinal) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (id == nullptr) return Status::invalid_value;
  if (device(ordinal) == nullptr) return Status::invalid_device;
  *id = ordinal;
  return Status::success;
}

Status EmulatedDriver::device_get_name(char* name, int length, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (name == nullptr || length <= 0) return Status::invalid_value;
  const auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  const auto shown = std::min(card->name.size(), static_cast<std::size_t>(length) - 1);
  std::memcpy(name, card->name.data(), shown);
  name[shown] = '\0';
  return Status::success;
}

Status EmulatedDriver::device_get_uuid(DeviceUuid* uuid, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (uuid == nullptr) return Status::invalid_value;
  const auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  *uuid = card->uuid;
  return Status::success;
}

Status EmulatedDriver::device_total_mem(std::size_t* bytes, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (bytes == nullptr) return Status::invalid_value;
  const auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  *bytes = card->memory_bytes;
  return Status::success;
}

Status EmulatedDriver::device_get_attribute(int* value, DeviceAttribute attribute, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (value == nullptr) return Status::invalid_value;
  const auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  if (attribute == DeviceAttribute::pci_bus_id) {
    *value = id + 1;
    return Status::success;
  }
  if (attribute == DeviceAttribute::dma_buf_supported) {
    *value = card->model.gpu_direct_rdma && !state_->refusals.dmabuf ? 1 : 0;
    return Status::success;
  }
  auto found = common_attribute(attribute);
  if (!found) found = model_attribute(card->model, attribute);
  if (!found) return refuse(*in.thread, Status::invalid_value, "the emulated card has no such attribute");
  *value = *found;
  return Status::success;
}

Status EmulatedDriver::device_can_access_peer(int* can, DeviceId id, DeviceId peer) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (can == nullptr) return Status::invalid_value;
  const auto* card = device(id);
  if (card == nullptr || device(peer) == nullptr) return Status::invalid_device;
  *can = !state_->refusals.peer_access && (card->peers >> peer & 1) != 0 ? 1 : 0;
  return Status::success;
}

}  // namespace cenote::cuda::emulator
