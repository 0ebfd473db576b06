// A whole pool for a test: broker and agents as processes of the built `cenote`, quick timings, free ports, a
// temporary folder. Whatever happens, nothing of it is left.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pool/cli/process_set.h"
#include "pool/client/pool_client.h"
#include "tests/test_paths.h"

namespace cenote::pool::testing {

inline const std::string kCenote = CENOTE_BINARY_DIR "/bin/cenote";

/// How long a test waits for what must happen. Far longer than it takes: the machine may be busy.
inline Deadline patience() { return Deadline::in(std::chrono::seconds(60)); }

/// Looks every few milliseconds until it holds; false = it never did.
bool eventually(const std::function<bool()>& condition, Deadline deadline = patience());

using cli::children_of;
bool alive(pid_t pid);

struct ProgramResult {
  int exit_code = 0;
  std::string output, error;
};
/// Runs `cenote ARGUMENTS` to its end.
ProgramResult run_cenote(const std::vector<std::string>& arguments);

/// Three agents with four cards: "a" has two. Timings: heartbeat 50 ms, agents dead after 2 s, clocks alike.
class Cluster {
 public:
  /// nullptr, with a failure of the test, when it could not start. `settings`: "name=value", beyond these.
  static std::unique_ptr<Cluster> start(std::vector<std::string> settings = {});
  explicit Cluster(std::unique_ptr<cli::ProcessSet> processes) : processes_(std::move(processes)) {}

  cli::ProcessSet& processes() { return *processes_; }
  [[nodiscard]] std::unique_ptr<client::PoolClient> client() const;
  /// Options that make the command talk to this pool.
  [[nodiscard]] std::vector<std::string> options() const;
  ProgramResult run(std::vector<std::string> arguments) const;

  /// Worker processes of all agents.
  [[nodiscard]] std::vector<pid_t> workers() const;
  [[nodiscard]] std::size_t leases() const;
  /// No lease in the broker, no worker process at any agent.
  [[nodiscard]] bool idle() const;

 private:
  std::unique_ptr<cli::ProcessSet> processes_;
};

}  // namespace cenote::pool::testing
