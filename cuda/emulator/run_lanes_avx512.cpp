#define CENOTE_LANES lanes_avx512
#include "cuda/emulator/run_lanes.inc"
