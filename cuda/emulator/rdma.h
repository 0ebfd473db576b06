// RdmaExports: what a NIC sees of device memory. A real GPU may hold back what a NIC has written until it is
// told to flush; here it always does. An export is a memfd of its own: the NIC reads and writes that one.
// flush() brings what it wrote into device memory, publish() shows it what the device wrote.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/emulator/address_space.h"
#include "runtime/result.h"

namespace cenote::cuda::emulator {

/// Thread-safe. A byte that NIC and device write at the same time has the NIC's value.
class RdmaExports {
 public:
  /// A descriptor for the range, which lies at `pieces`. Errors: system_error.
  Result<int> open(DevicePtr begin, std::size_t bytes, const std::vector<Piece>& pieces);
  void flush() { merge(true); }
  void publish() { merge(false); }
  /// The memory goes away; descriptors that are still open see it no more.
  void drop(DevicePtr begin, std::size_t bytes);

 private:
  struct Export;
  void merge(bool from_nic);

  std::atomic<unsigned> count_{0};
  std::mutex mutex_;
  std::vector<std::shared_ptr<Export>> exports_;
};

}  // namespace cenote::cuda::emulator
