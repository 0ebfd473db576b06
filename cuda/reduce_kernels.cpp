#include "cuda/reduce_kernels.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "cuda/kernels/embedded.h"

namespace cenote::cuda {
namespace {

constexpr unsigned kThreads = 256;

// As reduce.cu names its kernels; empty: no such type.
std::string_view suffix(DataType type) {
  switch (type) {
    case CENOTE_FLOAT32:
      return "f32";
    case CENOTE_FLOAT64:
      return "f64";
    case CENOTE_FLOAT16:
      return "f16";
    case CENOTE_BFLOAT16:
      return "bf16";
    case CENOTE_INT32:
      return "s32";
    case CENOTE_INT64:
      return "s64";
  }
  return {};
}

std::string_view verb(ReduceOp op) {
  switch (op) {
    case CENOTE_SUM:
    case CENOTE_AVG:
      return "sum";
    case CENOTE_MIN:
      return "min";
    case CENOTE_MAX:
      return "max";
  }
  return {};
}

}  // namespace

Error driver_error(const Driver& driver, std::string stage, Status status) {
  std::string cause = std::string(status_text(status)) + " (" + std::string(status_name(status)) + ")";
  if (auto detail = driver.last_error_detail(); !detail.empty()) cause += ": " + detail;
  Error error{ErrorCode::driver_error, std::move(stage), std::move(cause)};
  error.native = static_cast<int>(status);
  return error;
}

Result<std::unique_ptr<ReduceKernels>> ReduceKernels::load(Driver& driver) {
  Context context = nullptr;
  if (auto status = driver.ctx_get_current(&context); status != Status::success) {
    return fail(driver_error(driver, "load the reduction kernels", status));
  }
  const auto text = kernels::reduce_ptx();
  Module module = nullptr;
  if (auto status = driver.module_load_data(&module, text.data(), text.size()); status != Status::success) {
    return fail(driver_error(driver, "load the reduction kernels", status));
  }
  return std::unique_ptr<ReduceKernels>(new ReduceKernels(driver, context, module));
}

ReduceKernels::~ReduceKernels() {
  Context current = nullptr;
  if (driver_.ctx_get_current(&current) == Status::success && current == context_)
    driver_.module_unload(module_);
}

Result<Function> ReduceKernels::function(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (auto it = functions_.find(name); it != functions_.end()) return it->second;
  Function found = nullptr;
  if (auto status = driver_.module_get_function(&found, module_, name.c_str()); status != Status::success) {
    return fail(driver_error(driver_, "find the kernel " + name, status));
  }
  functions_[name] = found;
  return found;
}

Result<void> ReduceKernels::launch(const std::string& name, std::size_t count, Stream stream, void** params) {
  CENOTE_ASSIGN(auto* kernel, function(name));
  LaunchConfig config;
  config.grid[0] = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  config.block[0] = kThreads;
  if (auto status = driver_.launch_kernel(kernel, config, stream, params); status != Status::success) {
    return fail(driver_error(driver_, "launch " + name, status));
  }
  return {};
}

Result<void> ReduceKernels::reduce(DevicePtr dst, DevicePtr src, std::size_t count, DataType type,
                                   ReduceOp op, Stream stream) {
  const auto of = suffix(type);
  const auto how = verb(op);
  if (of.empty() || how.empty()) {
    return fail(ErrorCode::invalid_argument, "reduce on the device", "no such element type or operation");
  }
  if (count == 0) return {};
  std::uint64_t elements = count;
  void* params[] = {&dst, &src, &elements};
  return launch("cenote_reduce_" + std::string(how) + "_" + std::string(of), count, stream, params);
}

Result<void> ReduceKernels::divide(DevicePtr x, std::size_t count, DataType type, unsigned divisor,
                                   Stream stream) {
  const auto of = suffix(type);
  if (of.empty() || divisor == 0) {
    return fail(ErrorCode::invalid_argument, "divide on the device",
                "no such element type, or a division by zero");
  }
  if (count == 0) return {};
  std::uint64_t elements = count;
  void* params[] = {&x, &elements, &divisor};
  return launch("cenote_divide_" + std::string(of), count, stream, params);
}

}  // namespace cenote::cuda
