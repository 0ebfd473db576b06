// The table that each width fills in; reduce.cpp chooses among them. Nothing but plain types here: the widths
// are compiled with instructions that not every processor has, so they share no inline code with anybody.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote::collectives::detail {

inline constexpr int kernel_types = 6;  // DataType's values
inline constexpr int kernel_ops = 3;    // sum, min, max

struct KernelTable {
  void (*reduce[kernel_types][kernel_ops])(void* dst, const void* a, const void* b, std::size_t count);
  void (*divide[kernel_types])(void* x, std::size_t count, std::uint32_t divisor);
};

extern const KernelTable baseline_kernels;
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;

}  // namespace cenote::collectives::detail
