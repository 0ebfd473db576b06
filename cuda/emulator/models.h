// What the emulated cards say of themselves: the figures of the vendor's data sheets.
#pragma once

#include <cstddef>
#include <string_view>

namespace cenote::cuda::emulator {

struct CardModel {
  std::string_view model;
  std::string_view device_name;
  std::size_t memory_bytes;
  int major, minor;
  int multiprocessors;
  int threads_per_multiprocessor;
  int clock_khz, memory_clock_khz, memory_bus_bits;
  int l2_bytes;
  int shared_optin_bytes;
  bool nvlink;
  int async_engines;
  bool gpu_direct_rdma;
};

/// The model of that name; an A100 under a name that is none.
const CardModel& card_model(std::string_view name);

}  // namespace cenote::cuda::emulator
