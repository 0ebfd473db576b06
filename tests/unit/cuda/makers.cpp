#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {

std::vector<Maker> makers() {
  std::vector<Maker> all = {{"Emulated", make_emulated_driver}};
  for (const std::uint64_t seed : {1, 7, 42}) {
    all.push_back({"Adversarial" + std::to_string(seed), [seed](EmulatorOptions options) {
                     options.adversarial_streams = true;
                     options.seed = seed;
                     return make_emulated_driver(std::move(options));
                   }});
  }
  return all;
}

}  // namespace cenote::cuda::test
