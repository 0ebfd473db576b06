// Devices: which of a program's buffers are memory of a CUDA device, and the way to them. Behind the C
// interface, whose callers hand over plain pointers.
//
// The driver's library is never linked, and never brought into a process: a program that has device memory
// has loaded it. Where it has not, every buffer is host memory, and asking costs no system call.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "collectives/gate.h"
#include "cuda/driver.h"
#include "runtime/memory.h"
#include "runtime/result.h"

namespace cenote::collectives {

class Devices {
 public:
  /// `library`: the driver's, by the name or path that the process loads it by; "": there is none.
  explicit Devices(std::string library) : library_(std::move(library)) {}
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  /// Host memory, unless the driver knows better. Its way to the device is made at first need, and kept.
  /// Thread-safe; descriptions may outlive this. Errors: driver_error (device memory that ends before the
  /// buffer does, a driver that refuses), not_supported (a driver too old).
  Result<MemoryDescription> describe(const void* pointer, std::size_t bytes);

  /// A gate that opens when the work that `stream` (a CUstream) holds now is done: in the context of the
  /// first of `buffers` that is device memory, else in the thread's. It fails if the work did. Errors:
  /// driver_error, not_supported (no driver is loaded).
  Result<Gate> after(void* stream, std::span<const MemoryDescription> buffers);

 private:
  struct Card;
  Result<cuda::Driver*> driver();
  Result<std::shared_ptr<Card>> card_of(cuda::Driver& driver, std::uint64_t pointer);
  Result<std::shared_ptr<Card>> card_in(cuda::Driver& driver, cuda::Context context);

  const std::string library_;
  std::atomic<unsigned long long> looked_at_{~0ULL};  ///< how many libraries had been loaded
  std::atomic<cuda::Driver*> found_{nullptr};
  std::mutex mutex_;
  std::shared_ptr<cuda::Driver> driver_;
  std::map<cuda::Context, std::shared_ptr<Card>> cards_;
};

}  // namespace cenote::collectives
