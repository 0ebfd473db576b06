// Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c and vectors of 512 bits.
#define CENOTE_KERNEL_TABLE avx512_kernels
#define CENOTE_HALF_HARDWARE
#include "collectives/reduce/kernels_body.h"
