#define CENOTE_KERNEL_TABLE baseline_kernels
#include "collectives/reduce/kernels_body.h"
