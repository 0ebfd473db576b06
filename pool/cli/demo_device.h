// DemoDevice: one device of a driver with the demo's kernels loaded; calls that check, and name what failed.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "cuda/driver.h"
#include "pool/remote/client_driver.h"
#include "runtime/result.h"

namespace cenote::pool::cli {

/// Movable. Its context, stream and modules end with the driver.
class DemoDevice {
 public:
  struct Kernels {
    cuda::Function forward, softmax_loss, weight_gradient, bias_gradient, input_gradient, update,
        count_correct, sum;
    cuda::Function reduce_sum;
  };

  static Result<DemoDevice> open(remote::RemoteDriver& driver, int ordinal);

  /// Makes it current on this thread: before a run of calls to it.
  Result<void> use();
  Result<cuda::DevicePtr> alloc(std::size_t bytes);
  Result<cuda::DevicePtr> upload(const void* data, std::size_t bytes);
  Result<void> download(void* to, cuda::DevicePtr from, std::size_t bytes);
  Result<void> clear(cuda::DevicePtr at, std::size_t bytes);
  Result<void> copy(cuda::DevicePtr to, cuda::DevicePtr from, std::size_t bytes);
  Result<void> synchronize();

  struct Shape {
    unsigned grid_x = 1, grid_y = 1, block_x = 1, block_y = 1;
  };
  /// Arguments by value, of exactly the kernel's types (pointers as DevicePtr).
  template <class... Args>
  Result<void> launch(cuda::Function kernel, const Shape& shape, Args... args) {
    std::array<void*, sizeof...(Args)> pointers{&args...};
    return launch_pointers(kernel, shape, pointers.data());
  }

  [[nodiscard]] const Kernels& kernels() const { return kernels_; }
  [[nodiscard]] cuda::Stream stream() const { return stream_; }

  /// Also for calls that are not made here.
  Result<void> check(const char* stage, cuda::Status status) const;

 private:
  DemoDevice(remote::RemoteDriver& driver, int ordinal) : driver_(&driver), ordinal_(ordinal) {}
  Result<void> load_kernels();
  Result<void> launch_pointers(cuda::Function kernel, const Shape& shape, void** arguments);

  remote::RemoteDriver* driver_;
  int ordinal_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  Kernels kernels_{};
};

}  // namespace cenote::pool::cli
