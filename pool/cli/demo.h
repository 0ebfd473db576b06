// The demo: a pool of broker and agents on this machine, or one that stands already; four leased GPUs, a
// small network trained on them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pool/cli/demo_kill.h"
#include "pool/cli/interrupt.h"
#include "pool/remote/client_driver.h"
#include "runtime/result.h"
#include "runtime/settings.h"

namespace cenote::pool::cli {

/// What a demo must reach to count as good.
inline constexpr double demo_least_accuracy = 0.95;

struct DemoOptions {
  std::uint32_t epochs = 30;
  std::uint32_t hidden = 64;
  std::string transports = "shm,tcp";
  std::vector<std::string> settings{};  ///< name=value, for every process of the pool
  std::string algorithm = "auto";       ///< of the workers' allreduce, whose order of additions is repeated
  std::string data;                     ///< "" = the copy that comes with the program
  std::string json;                     ///< file for the figures; "" = none
  bool keep = false;                    ///< logs and store stay
  Victim kill = Victim::none;
  std::uint32_t kills = 1;  ///< how often
  std::uint32_t seed = 0;   ///< of their moments
  /// Who stands in a pool already, as its client: then nothing is started, nobody killed, and `transports`
  /// and `keep` mean nothing.
  std::optional<Settings> pool{};
};

/// What the demo measured.
struct DemoFigures {
  double test_accuracy = 0, single_gpu_accuracy = 0;
  bool weights_bit_equal = false;
  double grant_ms = 0;
  double launches_per_second = 0;
  std::uint64_t exchanged_bytes = 0;     ///< between the workers, while training
  std::uint64_t client_bytes = 0;        ///< sent by the client while training
  std::uint64_t client_setup_bytes = 0;  ///< before: module, data, initial weights
  std::uint64_t gradient_bytes = 0;      ///< of one step on one GPU
  std::uint64_t steps = 0;
  double bus_bandwidth_gbps = 0;  ///< of a large allreduce, gigabytes a second
  double training_seconds = 0, seconds = 0;
  std::vector<std::string> client_transports;  ///< to each worker
  std::vector<remote::PairStats> pairs;
  std::vector<KillFigures> kills;
};

/// Runs it and prints as it goes. Leaves no process behind, and no folder but one that was to be kept,
/// whatever happens. Errors: cancelled (a signal); else what failed, with the device and its rank for a lost
/// worker.
Result<DemoFigures> run_demo(const DemoOptions& options, Interrupt& interrupt);

std::string figures_text(const DemoFigures& figures);
std::string figures_json(const DemoFigures& figures);

}  // namespace cenote::pool::cli
