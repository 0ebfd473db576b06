// Compiled with -mavx2 -mf16c (no -mfma: a fused multiply-add would change bits).
#define CENOTE_KERNEL_TABLE avx2_kernels
#define CENOTE_HALF_HARDWARE
#include "collectives/reduce/kernels_body.h"
