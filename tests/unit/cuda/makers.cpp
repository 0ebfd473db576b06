#include <dlfcn.h>

#include <string>

#include "cuda/real_driver.h"
#include "tests/cuda_standin/standin.h"
#include "tests/test_paths.h"
#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {

std::string standin_path() { return CENOTE_BINARY_DIR "/tests/standin/libcuda.so.1"; }

bool reset_standin(const EmulatorOptions* options) {
  void* library = dlopen(standin_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  auto reset = reinterpret_cast<StandinReset>(dlsym(library, "cenote_standin_reset"));
  if (reset == nullptr) return false;
  reset(options);
  return true;
}

std::vector<Maker> makers() {
  std::vector<Maker> all = {{"Emulated", make_emulated_driver}};
  for (const std::uint64_t seed : {1, 7, 42}) {
    all.push_back({"Adversarial" + std::to_string(seed), [seed](EmulatorOptions options) {
                     options.adversarial_streams = true;
                     options.seed = seed;
                     return make_emulated_driver(std::move(options));
                   }});
  }
  all.push_back({"RealOverStandIn",
                 [](const EmulatorOptions& options) -> std::unique_ptr<Driver> {
                   if (!reset_standin(&options)) return nullptr;
                   auto loaded = load_real_driver(standin_path());
                   EXPECT_TRUE(loaded) << loaded.error().message();
                   return loaded ? std::move(*loaded) : nullptr;
                 },
                 false});
  return all;
}

}  // namespace cenote::cuda::test
