// Work on leased GPUs that proves itself: every device counts kernel launches in its own memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/kernels/embedded.h"
#include "pool/client/pool_client.h"

namespace cenote::pool::testing {

/// Adds 1.0 to a float on each device, again and again. All calls return what failed, with the device named.
class CountingWork {
 public:
  static Result<CountingWork> open(client::Lease& lease, Deadline deadline) {
    CountingWork work;
    CENOTE_ASSIGN(work.driver_, lease.open(deadline));
    CENOTE_TRY(work.check(work.driver_->init(0)));
    int count = 0;
    CENOTE_TRY(work.check(work.driver_->device_get_count(&count)));
    for (int i = 0; i < count; ++i) {
      CENOTE_TRY(work.add_device(i));
    }
    return work;
  }

  /// One launch on each device, then each counter is read and compared.
  Result<void> round() {
    ++rounds_;
    for (auto& device : devices_) {
      float one = 1.0F;
      unsigned n = 1;
      void* arguments[] = {&one, &device.ones, &device.counter, &n};
      CENOTE_TRY(check(driver_->ctx_set_current(device.context)));
      CENOTE_TRY(check(driver_->launch_kernel(device.saxpy, {}, nullptr, arguments)));
    }
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      float counted = 0;
      CENOTE_TRY(check(driver_->ctx_set_current(devices_[i].context)));
      CENOTE_TRY(check(driver_->memcpy_dtoh(&counted, devices_[i].counter, sizeof counted)));
      if (counted != static_cast<float>(rounds_)) {
        return fail(ErrorCode::internal, "count launches",
                    "device " + std::to_string(i) + " counted " + std::to_string(counted) + " of " +
                        std::to_string(rounds_));
      }
    }
    return {};
  }
  [[nodiscard]] int rounds() const { return rounds_; }
  remote::RemoteDriver& driver() { return *driver_; }

 private:
  struct Device {
    cuda::Context context = nullptr;
    cuda::Function saxpy = nullptr;
    cuda::DevicePtr counter = 0, ones = 0;
  };

  Result<void> check(cuda::Status status) {
    if (status == cuda::Status::success) return {};
    if (auto lost = driver_->failure()) return fail(std::move(*lost));
    return fail(ErrorCode::driver_error, "count launches",
                std::string(cuda::status_text(status)) + ": " + driver_->last_error_detail());
  }

  Result<void> add_device(int ordinal) {
    auto& device = devices_.emplace_back();
    cuda::DeviceId id = 0;
    CENOTE_TRY(check(driver_->device_get(&id, ordinal)));
    CENOTE_TRY(check(driver_->primary_ctx_retain(&device.context, id)));
    CENOTE_TRY(check(driver_->ctx_set_current(device.context)));
    const std::string ptx(cuda::kernels::basic_ptx());
    cuda::Module module = nullptr;
    CENOTE_TRY(check(driver_->module_load_data(&module, ptx.c_str(), ptx.size() + 1)));
    CENOTE_TRY(check(driver_->module_get_function(&device.saxpy, module, "cenote_saxpy")));
    const float zero = 0.0F, one = 1.0F;
    CENOTE_TRY(check(driver_->mem_alloc(&device.counter, sizeof zero)));
    CENOTE_TRY(check(driver_->mem_alloc(&device.ones, sizeof one)));
    CENOTE_TRY(check(driver_->memcpy_htod(device.counter, &zero, sizeof zero)));
    return check(driver_->memcpy_htod(device.ones, &one, sizeof one));
  }

  std::unique_ptr<remote::RemoteDriver> driver_;
  std::vector<Device> devices_;
  int rounds_ = 0;
};

}  // namespace cenote::pool::testing
