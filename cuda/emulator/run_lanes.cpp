#include "cuda/emulator/run_lanes.h"

namespace cenote::cuda::emulator {

const LaneTable& best_lanes() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return lanes_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return lanes_avx2;
#endif
  return lanes_base;
}

}  // namespace cenote::cuda::emulator
