#include "tests/multi/agent/cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

namespace cenote::pool::testing {

namespace {

const std::vector<std::string> kAgents{"a", "b", "c"};

std::string contents(int fd) {
  std::string text(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  EXPECT_EQ(::pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

}  // namespace

bool eventually(const std::function<bool()>& condition, Deadline deadline) {
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool alive(pid_t pid) { return pid > 0 && ::kill(pid, 0) == 0; }

ProgramResult run_cenote(const std::vector<std::string>& arguments) {
  const UniqueFd output(::memfd_create("output", MFD_CLOEXEC)), error(::memfd_create("error", MFD_CLOEXEC));
  cli::ChildOptions options;
  options.command = {kCenote};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.output = output.get();
  options.error = error.get();
  auto child = cli::ChildProcess::start(options);
  if (!child) {
    ADD_FAILURE() << child.error().message();
    return {-1, {}, {}};
  }
  const auto status = child->wait(patience());
  EXPECT_TRUE(status) << "it did not end: cenote " << ::testing::PrintToString(arguments);
  return {status ? cli::ChildProcess::exit_code(*status) : -1, contents(output.get()), contents(error.get())};
}

std::unique_ptr<Cluster> Cluster::start(std::vector<std::string> settings) {
  cli::ProcessSetOptions options;
  options.executable = kCenote;
  options.prefix = "cenote-test";
  options.agents = {{"a", "emulated:H200:64MiB,emulated:H200:64MiB"},
                    {"b", "emulated:A100:64MiB"},
                    {"c", "emulated:T4:64MiB"}};
  options.settings = {"broker.heartbeat=50ms", "broker.agent_timeout=1s", "broker.agent_dead=2s",
                      "broker.clock_drift=100ms", "broker.grace=30s"};
  options.settings.insert(options.settings.end(), settings.begin(), settings.end());
  auto made = cli::ProcessSet::create(std::move(options));
  if (!made) {
    ADD_FAILURE() << made.error().message();
    return nullptr;
  }
  if (const auto started = (*made)->start(patience()); !started) {
    ADD_FAILURE() << started.error().message();
    return nullptr;
  }
  return std::make_unique<Cluster>(std::move(*made));
}

std::unique_ptr<client::PoolClient> Cluster::client() const {
  auto client = processes_->client();
  EXPECT_TRUE(client) << client.error().message();
  return client ? std::move(*client) : nullptr;
}

std::vector<std::string> Cluster::options() const { return {"--config", processes_->config_file()}; }

ProgramResult Cluster::run(std::vector<std::string> arguments) const {
  const auto front = options();
  arguments.insert(arguments.begin(), front.begin(), front.end());
  return run_cenote(arguments);
}

std::vector<pid_t> Cluster::workers() const {
  std::vector<pid_t> workers;
  for (const auto& name : kAgents) {
    const auto agent = processes_->agent_pid(name);
    if (agent <= 0) continue;
    for (const auto pid : children_of(agent)) workers.push_back(pid);
  }
  return workers;
}

std::size_t Cluster::leases() const {
  const auto leases = client()->leases(patience());
  EXPECT_TRUE(leases) << leases.error().message();
  return leases ? leases->size() : 999;
}

bool Cluster::idle() const { return workers().empty() && leases() == 0; }

}  // namespace cenote::pool::testing
