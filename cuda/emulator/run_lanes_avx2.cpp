#define CENOTE_LANES lanes_avx2
#include "cuda/emulator/run_lanes.inc"
