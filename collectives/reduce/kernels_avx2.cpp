// Compiled with -mavx2 -mf16c (no -mfma: a fused multiply-add would change bits).
#define CENOTE_HALF_HARDWARE
#include "collectives/reduce/kernels_body.h"

namespace cenote::collectives::detail {

constinit const KernelTable avx2_kernels = all_kernels;

}  // namespace cenote::collectives::detail
