#include "pool/cli/demo_device.h"

#include <fmt/format.h>

#include <string_view>

#include "cuda/kernels/embedded.h"

namespace cenote::pool::cli {

Result<void> DemoDevice::check(const char* stage, cuda::Status status) const {
  if (status == cuda::Status::success) return {};
  if (auto lost = driver_->failure()) return fail(std::move(*lost));  // names device, peer and cause
  auto cause = fmt::format("{} ({})", cuda::status_text(status), cuda::status_name(status));
  if (const auto detail = driver_->last_error_detail(); !detail.empty()) cause += ": " + detail;
  Error error{ErrorCode::driver_error, stage, std::move(cause)};
  error.native = static_cast<int>(status);
  return fail(std::move(error).on(fmt::format("gpu {}", ordinal_)));
}

Result<DemoDevice> DemoDevice::open(remote::RemoteDriver& driver, int ordinal) {
  DemoDevice device(driver, ordinal);
  cuda::DeviceId id = 0;
  CENOTE_TRY(device.check("open device", driver.device_get(&id, ordinal)));
  CENOTE_TRY(device.check("open device", driver.primary_ctx_retain(&device.context_, id)));
  CENOTE_TRY(device.use());
  CENOTE_TRY(device.check("make stream", driver.stream_create(&device.stream_, cuda::stream_non_blocking)));
  CENOTE_TRY(device.load_kernels());
  return device;
}

Result<void> DemoDevice::load_kernels() {
  const auto load = [&](std::string_view ptx, cuda::Module& module) {
    const std::string text(ptx);  // with the final 0 that the driver wants
    return check("load kernels", driver_->module_load_data(&module, text.c_str(), text.size() + 1));
  };
  cuda::Module mlp = nullptr, reduce = nullptr;
  CENOTE_TRY(load(cuda::kernels::mlp_ptx(), mlp));
  CENOTE_TRY(load(cuda::kernels::reduce_ptx(), reduce));
  const struct {
    cuda::Function* function;
    cuda::Module module;
    const char* name;
  } wanted[] = {{&kernels_.forward, mlp, "cenote_mlp_forward"},
                {&kernels_.softmax_loss, mlp, "cenote_mlp_softmax_loss"},
                {&kernels_.weight_gradient, mlp, "cenote_mlp_weight_gradient"},
                {&kernels_.bias_gradient, mlp, "cenote_mlp_bias_gradient"},
                {&kernels_.input_gradient, mlp, "cenote_mlp_input_gradient"},
                {&kernels_.update, mlp, "cenote_mlp_update"},
                {&kernels_.count_correct, mlp, "cenote_mlp_count_correct"},
                {&kernels_.sum, mlp, "cenote_mlp_sum"},
                {&kernels_.reduce_sum, reduce, "cenote_reduce_sum_f32"}};
  for (const auto& kernel : wanted) {
    CENOTE_TRY(
        check("find kernel", driver_->module_get_function(kernel.function, kernel.module, kernel.name)));
  }
  return {};
}

Result<void> DemoDevice::use() { return check("use device", driver_->ctx_set_current(context_)); }

Result<cuda::DevicePtr> DemoDevice::alloc(std::size_t bytes) {
  cuda::DevicePtr pointer = 0;
  CENOTE_TRY(check("allocate", driver_->mem_alloc(&pointer, bytes)));
  return pointer;
}

Result<cuda::DevicePtr> DemoDevice::upload(const void* data, std::size_t bytes) {
  CENOTE_ASSIGN(const auto pointer, alloc(bytes));
  // In the stream of the kernels that read it: a plain copy may arrive after it returned, and a non-blocking
  // stream does not wait for it.
  CENOTE_TRY(check("upload", driver_->memcpy_htod_async(pointer, data, bytes, stream_)));
  CENOTE_TRY(synchronize());
  return pointer;
}

Result<void> DemoDevice::download(void* to, cuda::DevicePtr from, std::size_t bytes) {
  CENOTE_TRY(synchronize());
  return check("download", driver_->memcpy_dtoh(to, from, bytes));
}

Result<void> DemoDevice::clear(cuda::DevicePtr at, std::size_t bytes) {
  return check("clear", driver_->memset_d8_async(at, 0, bytes, stream_));
}

Result<void> DemoDevice::copy(cuda::DevicePtr to, cuda::DevicePtr from, std::size_t bytes) {
  return check("copy", driver_->memcpy_dtod_async(to, from, bytes, stream_));
}

Result<void> DemoDevice::synchronize() { return check("synchronise", driver_->stream_synchronize(stream_)); }

Result<void> DemoDevice::launch_pointers(cuda::Function kernel, const Shape& shape, void** arguments) {
  cuda::LaunchConfig config;
  config.grid[0] = shape.grid_x;
  config.grid[1] = shape.grid_y;
  config.block[0] = shape.block_x;
  config.block[1] = shape.block_y;
  return check("launch", driver_->launch_kernel(kernel, config, stream_, arguments));
}

}  // namespace cenote::pool::cli
