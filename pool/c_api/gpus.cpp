// Work on leased GPUs.
#include <fmt/format.h>

#include <algorithm>

#include "pool/c_api/objects.h"

using namespace cenote;               // NOLINT(google-build-using-namespace)
using namespace cenote::pool;         // NOLINT(google-build-using-namespace)
using namespace cenote::pool::c_api;  // NOLINT(google-build-using-namespace)

namespace {

constexpr auto kOpenTimeout = std::chrono::seconds(30);

Result<void> check(const cuda::Driver& driver, const char* stage, cuda::Status status) {
  if (status == cuda::Status::success) return {};
  auto cause = fmt::format("{} ({})", cuda::status_text(status), cuda::status_name(status));
  if (const auto detail = driver.last_error_detail(); !detail.empty()) cause += ": " + detail;
  Error error{ErrorCode::driver_error, stage, std::move(cause)};
  error.native = static_cast<int>(status);
  return fail(std::move(error));
}

Result<void> check_process(const cenote_gpus& gpus, const char* stage) {
  if (!gpus.process.forked()) return {};
  return fail(Error{ErrorCode::invalid_argument, stage, "the devices were opened before fork()"}.fix(
      "connect, lease and open in the child"));
}

// Makes the device current on this thread, as CUDA wants it before most calls.
Result<cuda::Driver*> on_device(cenote_gpus* gpus, uint32_t device, const char* stage) {
  if (gpus == nullptr) return bad(stage, "`gpus` is NULL");
  CENOTE_TRY(check_process(*gpus, stage));
  if (device >= gpus->contexts.size()) return bad(stage, fmt::format("there is no device {}", device));
  CENOTE_TRY(check(*gpus->driver, stage, gpus->driver->ctx_set_current(gpus->contexts[device])));
  return gpus->driver.get();
}

Result<std::unique_ptr<cenote_gpus>> open(dropin::HelperLease& lease, Deadline deadline) {
  auto gpus = std::make_unique<cenote_gpus>();
  CENOTE_TRY(gpus->process.set());
  CENOTE_ASSIGN(gpus->driver, lease.open(deadline));
  auto& driver = *gpus->driver;
  constexpr auto kStage = "open the leased devices";
  CENOTE_TRY(check(driver, kStage, driver.init(0)));
  int count = 0;
  CENOTE_TRY(check(driver, kStage, driver.device_get_count(&count)));
  for (int i = 0; i < count; ++i) {
    cuda::DeviceId id = 0;
    cuda::Context context = nullptr;
    CENOTE_TRY(check(driver, kStage, driver.device_get(&id, i)));
    CENOTE_TRY(check(driver, kStage, driver.primary_ctx_retain(&context, id)));
    gpus->contexts.push_back(context);
  }
  return gpus;
}

Result<std::size_t> parameters_of(cuda::Driver& driver, cuda::Function function, const char* stage) {
  cuda::ParamInfo info;
  for (std::size_t i = 0;; ++i) {
    const auto status = driver.func_get_param_info(&info, function, i);
    if (status == cuda::Status::invalid_value) return i;  // one after the last
    CENOTE_TRY(check(driver, stage, status));
  }
}

Result<remote::RemoteCommunicator*> communicator(cenote_gpus& gpus) {
  const std::lock_guard lock(gpus.mutex);
  if (!gpus.communicator) {
    std::vector<cuda::DeviceId> devices(gpus.contexts.size());
    for (std::size_t i = 0; i < devices.size(); ++i) {
      CENOTE_TRY(check(*gpus.driver, "form a communicator",
                       gpus.driver->device_get(&devices[i], static_cast<int>(i))));
    }
    CENOTE_ASSIGN(gpus.communicator, gpus.driver->communicator(devices, Deadline::in(kOpenTimeout)));
  }
  return gpus.communicator.get();
}

}  // namespace

extern "C" {

cenote_status cenote_lease_open(cenote_lease* lease, uint32_t timeout_ms, cenote_gpus** gpus) {
  return guarded([&]() -> Result<void> {
    if (lease == nullptr || gpus == nullptr) return bad("open a lease", "`lease` or `gpus` is NULL");
    CENOTE_ASSIGN(auto opened, open(*lease->lease, within(timeout_ms, kOpenTimeout)));
    *gpus = opened.release();
    return {};
  });
}

void cenote_gpus_close(cenote_gpus* gpus) {
  // A child leaves its copy as it is: to take it apart would say farewell on the parent's connections.
  if (gpus == nullptr || gpus->process.forked()) return;
  gpus->communicator.reset();  // before its driver
  delete gpus;
}

cenote_status cenote_gpu_memory(cenote_gpus* gpus, uint32_t device, uint64_t* free_bytes,
                                uint64_t* total_bytes) {
  return guarded([&]() -> Result<void> {
    constexpr auto kStage = "ask for the memory of a device";
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, kStage));
    std::size_t free = 0, total = 0;
    CENOTE_TRY(check(*driver, kStage, driver->mem_get_info(&free, &total)));
    if (free_bytes != nullptr) *free_bytes = free;
    if (total_bytes != nullptr) *total_bytes = total;
    return {};
  });
}

cenote_status cenote_gpu_alloc(cenote_gpus* gpus, uint32_t device, size_t bytes, uint64_t* address) {
  return guarded([&]() -> Result<void> {
    constexpr auto kStage = "allocate device memory";
    if (address == nullptr) return bad(kStage, "`address` is NULL");
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, kStage));
    return check(*driver, kStage, driver->mem_alloc(address, bytes));
  });
}

cenote_status cenote_gpu_free(cenote_gpus* gpus, uint32_t device, uint64_t address) {
  return guarded([&]() -> Result<void> {
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, "free device memory"));
    return check(*driver, "free device memory", driver->mem_free(address));
  });
}

cenote_status cenote_gpu_upload(cenote_gpus* gpus, uint32_t device, uint64_t dst, const void* src,
                                size_t bytes) {
  return guarded([&]() -> Result<void> {
    if (src == nullptr && bytes > 0) return bad("upload", "`src` is NULL");
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, "upload"));
    return check(*driver, "upload", driver->memcpy_htod(dst, src, bytes));
  });
}

cenote_status cenote_gpu_download(cenote_gpus* gpus, uint32_t device, void* dst, uint64_t src, size_t bytes) {
  return guarded([&]() -> Result<void> {
    if (dst == nullptr && bytes > 0) return bad("download", "`dst` is NULL");
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, "download"));
    return check(*driver, "download", driver->memcpy_dtoh(dst, src, bytes));
  });
}

cenote_status cenote_gpu_load(cenote_gpus* gpus, uint32_t device, const void* image, size_t bytes,
                              cenote_module** module) {
  return guarded([&]() -> Result<void> {
    constexpr auto kStage = "load a module";
    if (image == nullptr || module == nullptr) return bad(kStage, "`image` or `module` is NULL");
    if (bytes == 0) return bad(kStage, "the image has no bytes");
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, kStage));
    auto made = std::make_unique<cenote_module>(cenote_module{gpus, device, nullptr});
    CENOTE_TRY(check(*driver, kStage, driver->module_load_data(&made->module, image, bytes)));
    const std::lock_guard lock(gpus->mutex);
    *module = gpus->modules.emplace_back(std::move(made)).get();
    return {};
  });
}

cenote_status cenote_module_kernel(cenote_module* module, const char* name, cenote_kernel** kernel) {
  return guarded([&]() -> Result<void> {
    constexpr auto kStage = "find a kernel";
    if (module == nullptr || name == nullptr || kernel == nullptr) return bad(kStage, "an argument is NULL");
    CENOTE_ASSIGN(auto* driver, on_device(module->gpus, module->device, kStage));
    auto made = std::make_unique<cenote_kernel>(cenote_kernel{module, nullptr, 0});
    CENOTE_TRY(check(*driver, kStage, driver->module_get_function(&made->function, module->module, name)));
    CENOTE_ASSIGN(made->parameters, parameters_of(*driver, made->function, kStage));
    const std::lock_guard lock(module->gpus->mutex);
    *kernel = module->gpus->kernels.emplace_back(std::move(made)).get();
    return {};
  });
}

cenote_status cenote_kernel_launch(cenote_kernel* kernel, const uint32_t grid[3], const uint32_t block[3],
                                   uint32_t shared_bytes, void** arguments) {
  return guarded([&]() -> Result<void> {
    constexpr auto kStage = "launch a kernel";
    if (kernel == nullptr || grid == nullptr || block == nullptr) return bad(kStage, "an argument is NULL");
    CENOTE_ASSIGN(auto* driver, on_device(kernel->module->gpus, kernel->module->device, kStage));
    for (std::size_t i = 0; i < kernel->parameters; ++i) {
      if (arguments == nullptr || arguments[i] == nullptr)
        return bad(kStage, arguments == nullptr ? std::string("`arguments` is NULL, but the kernel has some")
                                                : fmt::format("`arguments[{}]` is NULL", i));
    }
    cuda::LaunchConfig config;
    std::copy_n(grid, 3, config.grid);
    std::copy_n(block, 3, config.block);
    config.shared_bytes = shared_bytes;
    return check(*driver, kStage, driver->launch_kernel(kernel->function, config, nullptr, arguments));
  });
}

cenote_status cenote_gpu_synchronize(cenote_gpus* gpus, uint32_t device) {
  return guarded([&]() -> Result<void> {
    CENOTE_ASSIGN(auto* driver, on_device(gpus, device, "synchronise a device"));
    return check(*driver, "synchronise a device", driver->ctx_synchronize());
  });
}

cenote_status cenote_gpus_allreduce(cenote_gpus* gpus, const uint64_t* send, const uint64_t* recv,
                                    size_t count, cenote_type type, cenote_op op) {
  return guarded([&]() -> Result<void> {
    if (gpus == nullptr || send == nullptr || recv == nullptr) return bad("allreduce", "an argument is NULL");
    CENOTE_TRY(check_process(*gpus, "allreduce"));
    CENOTE_ASSIGN(auto* group, communicator(*gpus));
    const auto ranks = gpus->contexts.size();
    return group->allreduce({send, send + ranks}, {recv, recv + ranks}, count, type, op,
                            std::vector<cuda::Stream>(ranks, nullptr));
  });
}

}  // extern "C"
