// ReduceKernels: element-wise reductions by kernels (cuda/kernels/reduce.cu), bit for bit what the CPU makes.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/driver.h"
#include "runtime/result.h"
#include "runtime/types.h"

namespace cenote::cuda {

/// An Error for a status of `driver`, with what the driver says beyond the code.
Error driver_error(const Driver& driver, std::string stage, Status status);

/// For one context. The driver and the context outlive it. Thread-safe; the calling thread has the context
/// current.
class ReduceKernels {
 public:
  /// Loads the kernels into the current context. Errors: driver_error (the card cannot run them).
  static Result<std::unique_ptr<ReduceKernels>> load(Driver& driver);
  /// Unloads them if the context is current, else leaves them to the context's end.
  ~ReduceKernels();
  ReduceKernels(const ReduceKernels&) = delete;
  ReduceKernels& operator=(const ReduceKernels&) = delete;

  /// Queues dst[i] = op(dst[i], src[i]). An average is a sum here: divide() comes once, at the end.
  /// Errors: invalid_argument (no such type or op), driver_error.
  Result<void> reduce(DevicePtr dst, DevicePtr src, std::size_t count, DataType type, ReduceOp op,
                      Stream stream);
  /// Queues x[i] = x[i] / divisor; integers round toward zero. Errors: invalid_argument, driver_error.
  Result<void> divide(DevicePtr x, std::size_t count, DataType type, unsigned divisor, Stream stream);

 private:
  ReduceKernels(Driver& driver, Context context, Module module)
      : driver_(driver), context_(context), module_(module) {}
  Result<Function> function(const std::string& name);
  Result<void> launch(const std::string& name, std::size_t count, Stream stream, void** params);

  Driver& driver_;
  const Context context_;
  const Module module_;
  std::mutex mutex_;
  std::map<std::string, Function> functions_;
};

}  // namespace cenote::cuda
