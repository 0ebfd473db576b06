// What an EmulatedDriver holds. For driver_*.cpp only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/emulator/driver.h"
#include "runtime/fork_mark.h"

namespace cenote::cuda::emulator {

struct EmulatedDriver::State {
  explicit State(EmulatorOptions given);

  const EmulatorOptions options;
  Refusals refusals{};
  const std::shared_ptr<int> token = std::make_shared<int>(0);  // what threads recognise this driver by
  ForkMark fork_mark;
  std::mutex init_mutex;
  std::atomic<bool> initialized{false};
  std::vector<DeviceState> devices;

  AddressSpace space;
  RdmaExports rdma;

  std::mutex contexts_mutex;  // the devices' primary contexts, and `live`
  std::map<std::uint64_t, ContextEntry> live;
  std::uint64_t last_context = 0;

  std::mutex ipc_mutex;
  std::map<std::array<std::uint8_t, 16>, OpenedHandle> opened;

  std::mutex vmm_mutex;
  std::map<DevicePtr, std::size_t> reservations;
  std::map<AllocationHandle, std::shared_ptr<PhysicalMemory>> memory;
  std::map<DevicePtr, std::shared_ptr<PhysicalMemory>> mapped;
  AllocationHandle last_memory = 0x100;

  std::mutex print_mutex;
  void print(std::string_view text);
  /// On the stream's thread; a fault becomes the context's.
  void run_kernel(ContextState& context, const FunctionState& function, const LaunchConfig& config,
                  std::span<const std::byte> params);

  HandleTable<ContextState, Context, 0x11> contexts;
  HandleTable<ModuleState, Module, 0x22> modules;
  HandleTable<FunctionState, Function, 0x33> functions;
  HandleTable<StreamState, Stream, 0x44> streams;
  HandleTable<EventState, Event, 0x55> events;
};

/// The driver whose host function the calling thread is in; such a function may not call it.
const void*& host_function_of();

}  // namespace cenote::cuda::emulator
