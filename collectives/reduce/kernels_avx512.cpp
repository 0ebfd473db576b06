// Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c and vectors of 512 bits.
#define CENOTE_HALF_HARDWARE
#include "collectives/reduce/kernels_body.h"

namespace cenote::collectives::detail {

constinit const KernelTable avx512_kernels = all_kernels;

}  // namespace cenote::collectives::detail
