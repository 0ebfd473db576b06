#include "collectives/reduce/reduce.h"

#include <fmt/format.h>

#ifdef CENOTE_X86_KERNELS
#include <cpuid.h>
#endif

#include "collectives/reduce/kernels.h"

namespace cenote::collectives {
namespace {

const detail::KernelTable* table(Width width) {
  if (!supported(width)) return nullptr;
  switch (width) {
    case Width::baseline:
      return &detail::baseline_kernels;
#ifdef CENOTE_X86_KERNELS
    case Width::avx2:
      return &detail::avx2_kernels;
    case Width::avx512:
      return &detail::avx512_kernels;
#else
    case Width::avx2:
    case Width::avx512:
      return nullptr;
#endif
  }
  return nullptr;
}

#ifdef CENOTE_X86_KERNELS
/// clang 16's __builtin_cpu_supports does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/// Row of the operation; -1 for none. An average adds.
int row(ReduceOp op) {
  switch (op) {
    case CENOTE_SUM:
    case CENOTE_AVG:
      return 0;
    case CENOTE_MIN:
      return 1;
    case CENOTE_MAX:
      return 2;
  }
  return -1;
}

}  // namespace

std::string_view to_string(Width width) {
  switch (width) {
    case Width::baseline:
      return "baseline";
    case Width::avx2:
      return "avx2";
    case Width::avx512:
      return "avx512";
  }
  return "unknown width";
}

bool supported(Width width) {
#ifdef CENOTE_X86_KERNELS
  switch (width) {
    case Width::baseline:
      return true;
    case Width::avx2:
      return __builtin_cpu_supports("avx2") != 0 && has_f16c();
    case Width::avx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 && has_f16c();
  }
  return false;
#else
  return width == Width::baseline;
#endif
}

Width widest() {
  static const Width best = supported(Width::avx512) ? Width::avx512
                            : supported(Width::avx2) ? Width::avx2
                                                     : Width::baseline;
  return best;
}

ReduceKernel reduce_kernel(DataType type, ReduceOp op, Width width) {
  const auto* kernels = table(width);
  const auto operation = row(op);
  if (kernels == nullptr || operation < 0 || size_of(type) == 0) return nullptr;
  return kernels->reduce[type][operation];
}

DivideKernel divide_kernel(DataType type, Width width) {
  const auto* kernels = table(width);
  if (kernels == nullptr || size_of(type) == 0) return nullptr;
  return kernels->divide[type];
}

Result<void> reduce(void* dst, const void* src, std::size_t bytes, DataType type, ReduceOp op) {
  const auto kernel = reduce_kernel(type, op);
  if (kernel == nullptr || bytes % size_of(type) != 0) {
    return fail(ErrorCode::invalid_argument, "reduce",
                fmt::format("{} bytes of {} by {}", bytes, to_string(type), to_string(op)));
  }
  kernel(dst, dst, src, bytes / size_of(type));
  return {};
}

}  // namespace cenote::collectives
