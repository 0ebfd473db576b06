// The emulated driver: a cuda::Driver whose devices are made of host memory and whose kernels are PTX run on
// the CPU (emulator/launch.h). A strict double: see docs/emulator.md for what it does as a real card would,
// and for what of a real card nothing here has executed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver.h"

namespace cenote::cuda {

/// One emulated card. What is left 0 or empty comes from the model.
struct EmulatedDevice {
  std::string model = "H200";  ///< H200, H100, A100, L40S, L4, T4, or a name of your own (then an A100)
  std::size_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  std::size_t context_bytes = 0;  ///< what each context takes away from the card's memory
  std::vector<int> peers{};       ///< ordinals this card reaches by NVLink; used with peers_given
  bool peers_given = false;       ///< false: every card whose model has NVLink reaches every other such card
  unsigned worker_threads = 1;    ///< host threads that one kernel may use
};

/// What the driver refuses, as real machines do: by setting, or drawn on `seed` for each driver.
struct EmulatedRefusals {
  bool ipc = false;            ///< exporting memory to other processes: not_supported
  bool dmabuf = false;         ///< exporting memory as a dma-buf: not_supported
  bool address_hints = false;  ///< reservations land elsewhere than asked
  bool peer_access = false;    ///< peer_access_unsupported
  /// Each of the above that is not set is set with this probability (0..1), drawn on the seed.
  double chance = 0.0;
};

struct EmulatorOptions {
  std::vector<EmulatedDevice> devices = {EmulatedDevice{}};
  std::uint64_t seed = 1;         ///< everything drawn at random is drawn on it
  std::string machine = "local";  ///< the cards' uuids are a function of this name, ordinal and model
  /// Streams run late and in odd interleavings, by delays drawn on the seed. Correct programs cannot tell.
  bool adversarial_streams = false;
  EmulatedRefusals refusals{};
  /// What device printf writes; empty = standard output. Called from the driver's threads, one at a time.
  std::function<void(std::string_view)> print{};
};

/// Never null. Takes no resources before init(). Independent of every other driver in the process. The
/// destructor ends kernels and waits in flight; it never waits for anything but its own threads.
std::unique_ptr<Driver> make_emulated_driver(EmulatorOptions options);

}  // namespace cenote::cuda
