// A libcuda.so.1 for tests: the exports of cuda/abi over the emulated driver.
#include "tests/cuda_standin/standin.h"

#include <atomic>
#include <memory>
#include <utility>

#include "cuda/abi/supplier.h"

namespace {

// Left alone at exit: programs call a driver until the very end.
std::atomic<cenote::cuda::Driver*> current{nullptr};

}  // namespace

namespace cenote::cuda::abi {

Driver* driver() { return current.load(std::memory_order_acquire); }

}  // namespace cenote::cuda::abi

extern "C" __attribute__((visibility("default"))) void cenote_standin_reset(
    const cenote::cuda::EmulatorOptions* options) {
  auto* next = options != nullptr ? cenote::cuda::make_emulated_driver(*options).release() : nullptr;
  delete current.exchange(next, std::memory_order_acq_rel);
}

extern "C" __attribute__((visibility("default"))) void cenote_standin_cards(unsigned cards, std::size_t bytes,
                                                                            unsigned long long seed) {
  if (cards == 0) return cenote_standin_reset(nullptr);
  cenote::cuda::EmulatorOptions options;
  options.devices.assign(cards, {});
  for (auto& card : options.devices) card.memory_bytes = bytes;
  options.adversarial_streams = seed != 0;
  options.seed = seed != 0 ? seed : 1;
  cenote_standin_reset(&options);
}
