// Reductions on the CPU, element by element, with the same bits on every processor and at every vector width.
//
//  - float32, float64: IEEE 754 arithmetic, rounded to nearest even. float16, bfloat16: computed in float32,
//  then
//    rounded to nearest even once. int32, int64: sums wrap around.
//  - min and max are IEEE 754-2019 `minimum` and `maximum` (§9.6): a NaN wins over everything, -0 is below
//  +0.
//  - A NaN result is always the same one, whatever went in: 0x7fffffff (float32), 0x7fff (float16 and
//  bfloat16),
//    as a GPU's add.f32, min.NaN.f32 and cvt.rn make them, and 0x7fffffffffffffff (float64).
//  So every operation is commutative bit for bit; only how operands are associated can change a result.
//  - CENOTE_AVG adds like CENOTE_SUM; `divide` ends it: x / ranks, rounded as above, integers toward zero.
//
// Thread-safe for disjoint `dst`. Never allocates. Processors are told apart at run time (SSE2, AVX2 with
// F16C, AVX-512); other architectures take the portable code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/result.h"
#include "runtime/types.h"

namespace cenote::collectives {

using cenote::to_string;  // of types and reductions, beside our own

/// dst[i] = op(a[i], b[i]); dst may be a or b, and may not overlap them otherwise. Any alignment.
using ReduceKernel = void (*)(void* dst, const void* a, const void* b, std::size_t count);
/// x[i] = x[i] / divisor
using DivideKernel = void (*)(void* x, std::size_t count, std::uint32_t divisor);

enum class Width : std::uint8_t { baseline, avx2, avx512 };
std::string_view to_string(Width width);

/// Whether this build has that code and this processor runs it.
[[nodiscard]] bool supported(Width width);
/// The widest that is.
[[nodiscard]] Width widest();

/// Null for a type or an operation that is none, or a width that is not supported.
[[nodiscard]] ReduceKernel reduce_kernel(DataType type, ReduceOp op, Width width = widest());
[[nodiscard]] DivideKernel divide_kernel(DataType type, Width width = widest());

/// dst[i] = op(dst[i], src[i]) over `bytes`. Errors: invalid_argument (no such pair, or bytes are no whole
/// elements).
Result<void> reduce(void* dst, const void* src, std::size_t bytes, DataType type, ReduceOp op);

}  // namespace cenote::collectives
