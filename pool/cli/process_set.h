// ProcessSet: a whole pool on this machine, for the demo and for tests: broker and agents as child processes
// in a temporary folder, with certificates of their own and ports that were free. Nothing outlives it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/cli/child_process.h"
#include "pool/client/pool_client.h"
#include "runtime/deadline.h"
#include "runtime/process.h"
#include "runtime/result.h"

namespace cenote::pool::cli {

struct AgentPlan {
  std::string name;
  std::string devices;  ///< as in the setting agent.devices
};

struct ProcessSetOptions {
  std::string executable = "/proc/self/exe";  ///< cenote
  std::string prefix = "cenote-demo";         ///< of the temporary folder
  std::vector<AgentPlan> agents;
  std::vector<std::string> settings{};  ///< name=value, for all of them
  bool keep_folder = false;             ///< logs and store stay when it ends
};

/// Not thread-safe. Children die with this process (and the folder goes with it, by a small guardian
/// process), even when it is killed. Make it and keep it on one thread: the children's death signal follows
/// that thread.
class ProcessSet {
 public:
  /// Makes the folder and the certificates; starts nothing.
  static Result<std::unique_ptr<ProcessSet>> create(ProcessSetOptions options);
  /// Kills and reaps everything.
  ~ProcessSet();
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  /// Broker, then all agents; returns when every agent has registered. Errors of all that wait: cancelled,
  /// deadline_exceeded; peer_failed, with the end of its log, when a child could not start.
  Result<void> start(Deadline deadline, const CancelFlag* cancel = nullptr);
  /// Starts it (again) on the port it had; returns when it listens.
  Result<void> start_broker(Deadline deadline, const CancelFlag* cancel = nullptr);
  /// The same for who has other work meanwhile: begins, and tells later, without waiting, whether it listens.
  Result<void> begin_broker();
  [[nodiscard]] Result<bool> broker_listens();
  Result<void> start_agent(const std::string& name, Deadline deadline, const CancelFlag* cancel = nullptr);
  /// `cenote ARGUMENTS` as a client of this pool, as quiet as the others; returns when it has said that it is
  /// ready (--ready-fd).
  Result<ChildProcess> start_client(std::vector<std::string> arguments, Deadline deadline,
                                    const CancelFlag* cancel = nullptr);
  /// SIGKILL, reaped.
  void kill_broker();
  void kill_agent(const std::string& name);
  /// SIGTERM to all, agents first; SIGKILL to what stays.
  void stop();

  [[nodiscard]] Result<void> wait_agents(std::size_t alive, Deadline deadline,
                                         const CancelFlag* cancel = nullptr);

  [[nodiscard]] const std::string& folder() const { return folder_.path(); }
  [[nodiscard]] const std::string& broker_endpoint() const { return broker_endpoint_; }
  [[nodiscard]] pid_t broker_pid() const { return broker_.pid(); }
  [[nodiscard]] pid_t agent_pid(const std::string& name) const;
  /// The processes that serve leases on this agent.
  [[nodiscard]] std::vector<pid_t> worker_pids(const std::string& name) const;
  /// What a client needs: the settings file of this pool.
  [[nodiscard]] std::string config_file() const { return folder_.file("cenote.toml"); }
  [[nodiscard]] Result<std::unique_ptr<client::PoolClient>> client() const;
  /// The last lines of a child's log, for errors. "broker", or an agent's name.
  [[nodiscard]] std::string log_tail(const std::string& who) const;

 private:
  ProcessSet(ProcessSetOptions options, TemporaryFolder folder)
      : options_(std::move(options)), folder_(std::move(folder)) {}
  Result<void> prepare();
  Result<void> write_config();
  struct Starting {
    std::string who;
    ChildProcess child;
    UniqueFd ready;  ///< it writes its endpoint there
  };
  Result<Starting> begin(const std::string& who, std::vector<std::string> settings,
                         std::vector<std::string> arguments) const;
  Result<std::string> endpoint_of(Starting& starting, Deadline deadline, const CancelFlag* cancel) const;
  Result<void> finish_broker(Deadline deadline, const CancelFlag* cancel);

  const ProcessSetOptions options_;
  TemporaryFolder folder_;
  UniqueFd guardian_;  ///< its end of the file is our end
  ChildProcess guardian_process_;
  std::string broker_endpoint_ = "127.0.0.1:0";
  ChildProcess broker_;
  std::optional<Starting> broker_starting_;
  std::map<std::string, ChildProcess> agents_;
};

}  // namespace cenote::pool::cli
