#define CENOTE_LANES lanes_base
#include "cuda/emulator/run_lanes.inc"
