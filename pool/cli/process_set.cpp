#include "pool/cli/process_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "pool/cli/cli.h"
#include "pool/key_file.h"
#include "pool/tls/certificates.h"

namespace cenote::pool::cli {

namespace {

constexpr auto kGrace = std::chrono::seconds(5);
constexpr int kLooksEveryMs = 50;  ///< after a cancel

// The child's first line on the pipe: its endpoint. Its end without one: it could not start.
Result<std::string> read_endpoint(int fd, Deadline deadline, const CancelFlag* cancel) {
  std::string line;
  while (!deadline.passed()) {
    if (cancel != nullptr && cancel->raised()) return fail(ErrorCode::cancelled, "start", "cancelled");
    pollfd readable{fd, POLLIN, 0};
    if (::poll(&readable, 1, deadline.poll_ms(kLooksEveryMs)) <= 0) continue;
    char buffer[256];
    const auto got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(ErrorCode::peer_failed, "start", "it ended before it listened");
    line.append(buffer, static_cast<std::size_t>(got));
    if (line.back() == '\n') return line.substr(0, line.size() - 1);
  }
  return fail(ErrorCode::deadline_exceeded, "start", "it did not listen in time");
}

}  // namespace

Result<std::unique_ptr<ProcessSet>> ProcessSet::create(ProcessSetOptions options) {
  CENOTE_ASSIGN(auto folder, TemporaryFolder::create(options.prefix));
  auto set = std::unique_ptr<ProcessSet>(new ProcessSet(std::move(options), std::move(folder)));
  CENOTE_TRY(set->prepare());
  return set;
}

ProcessSet::~ProcessSet() {
  agents_.clear();
  broker_starting_.reset();
  broker_ = ChildProcess();
  if (options_.keep_folder) {
    guardian_process_ = ChildProcess();  // before its descriptor: it must not see our end
    folder_.disown();
  } else {
    guardian_.reset();
    guardian_process_.wait(Deadline::in(kGrace));
  }
}

Result<void> ProcessSet::prepare() {
  // The guardian removes the folder when this process is gone, also by SIGKILL.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(system_error("make the guardian's pipe", errno));
  const UniqueFd theirs(ends[0]);
  guardian_.reset(ends[1]);
  ChildOptions guardian;
  guardian.command = {options_.executable, "guard", folder_.path()};
  guardian.pass = theirs.get();
  CENOTE_ASSIGN(guardian_process_, ChildProcess::start(guardian));

  const auto tls = folder_.file("tls");
  CENOTE_TRY(tls::create_authority(tls));
  CENOTE_TRY(tls::issue(tls, "main", tls::Role::broker));
  CENOTE_TRY(tls::issue(tls, "demo", tls::Role::client));
  for (const auto& agent : options_.agents) {
    CENOTE_TRY(tls::issue(tls, agent.name, tls::Role::agent));
  }
  return write_config();
}

Result<void> ProcessSet::write_config() {
  const auto text =
      fmt::format("[tls]\ndir = \"{}\"\n[broker]\nstate_dir = \"{}\"\nlisten = \"{}\"\naddress = \"{}\"\n",
                  folder_.file("tls"), folder_.file("broker"), broker_endpoint_, broker_endpoint_);
  return write_private_file(config_file(), text);
}

Result<ProcessSet::Starting> ProcessSet::begin(const std::string& who, std::vector<std::string> settings,
                                               std::vector<std::string> arguments) const {
  const UniqueFd log(
      ::open(folder_.file(who + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  int ends[2];
  if (!log || ::pipe2(ends, O_CLOEXEC) != 0) return fail(system_error("start " + who, errno));
  Starting starting;
  starting.who = who;
  starting.ready.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  ChildOptions options;
  options.command = {options_.executable, "--die-with", std::to_string(::getpid()), "--config",
                     config_file()};
  settings.insert(settings.begin(), options_.settings.begin(), options_.settings.end());
  for (const auto& setting : settings) {
    options.command.push_back("--set");
    options.command.push_back(setting);
  }
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.command.insert(options.command.end(), {"--ready-fd", "3"});
  options.output = options.error = log.get();
  options.without = "CENOTE_";  // this pool's settings are its own, whatever its user's pool is
  options.pass = theirs.get();
  CENOTE_ASSIGN(starting.child, ChildProcess::start(options));
  return starting;
}

Result<std::string> ProcessSet::endpoint_of(Starting& starting, Deadline deadline,
                                            const CancelFlag* cancel) const {
  auto endpoint = read_endpoint(starting.ready.get(), deadline, cancel);
  if (endpoint) return endpoint;
  auto error = std::move(endpoint).error();
  error.stage = "start " + starting.who;
  starting.child.end(Clock::duration::zero());
  const auto tail = error.code == ErrorCode::cancelled ? "" : log_tail(starting.who);
  if (!tail.empty()) error.cause += ": " + tail;
  return fail(std::move(error));
}

Result<void> ProcessSet::begin_broker() {
  CENOTE_ASSIGN(broker_starting_, begin("broker", {}, {"broker"}));
  return {};
}

Result<bool> ProcessSet::broker_listens() {
  if (!broker_starting_) return broker_.pid() > 0;
  pollfd readable{broker_starting_->ready.get(), POLLIN, 0};
  if (::poll(&readable, 1, 0) <= 0) return false;
  CENOTE_TRY(finish_broker(Deadline::in(kGrace), nullptr));
  return true;
}

Result<void> ProcessSet::finish_broker(Deadline deadline, const CancelFlag* cancel) {
  auto starting = *std::exchange(broker_starting_, std::nullopt);
  CENOTE_ASSIGN(auto endpoint, endpoint_of(starting, deadline, cancel));
  broker_ = std::move(starting.child);
  if (broker_endpoint_ != endpoint) {
    broker_endpoint_ = std::move(endpoint);
    CENOTE_TRY(write_config());
  }
  return {};
}

Result<void> ProcessSet::start_broker(Deadline deadline, const CancelFlag* cancel) {
  CENOTE_TRY(begin_broker());
  return finish_broker(deadline, cancel);
}

Result<void> ProcessSet::start_agent(const std::string& name, Deadline deadline, const CancelFlag* cancel) {
  const auto plan = std::ranges::find(options_.agents, name, &AgentPlan::name);
  if (plan == options_.agents.end())
    return fail(ErrorCode::not_found, "start agent " + name, "it is not planned");
  CENOTE_ASSIGN(auto starting, begin(name, {"agent.devices=" + plan->devices, "agent.listen=127.0.0.1:0"},
                                     {"agent", "--name", name}));
  CENOTE_TRY(endpoint_of(starting, deadline, cancel));
  agents_[name] = std::move(starting.child);
  return {};
}

Result<ChildProcess> ProcessSet::start_client(std::vector<std::string> arguments, Deadline deadline,
                                              const CancelFlag* cancel) {
  CENOTE_ASSIGN(auto starting, begin("client", {}, std::move(arguments)));
  CENOTE_TRY(endpoint_of(starting, deadline, cancel));
  return std::move(starting.child);
}

Result<void> ProcessSet::start(Deadline deadline, const CancelFlag* cancel) {
  CENOTE_TRY(start_broker(deadline, cancel));
  for (const auto& agent : options_.agents) {
    CENOTE_TRY(start_agent(agent.name, deadline, cancel));
  }
  return wait_agents(options_.agents.size(), deadline, cancel);
}

Result<void> ProcessSet::wait_agents(std::size_t alive, Deadline deadline, const CancelFlag* cancel) {
  CENOTE_ASSIGN(const auto asker, client());
  for (;;) {
    CENOTE_ASSIGN(const auto state, asker->top(deadline, cancel));
    const auto up = std::ranges::count_if(state.agents, &client::AgentState::alive);
    if (static_cast<std::size_t>(up) == alive) return {};
    if (deadline.passed()) {
      return fail(ErrorCode::deadline_exceeded, "wait for the agents",
                  fmt::format("{} of {} are there", up, alive));
    }
    if (cancel != nullptr && cancel->raised())
      return fail(ErrorCode::cancelled, "wait for the agents", "cancelled");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void ProcessSet::kill_broker() {
  broker_starting_.reset();
  broker_ = ChildProcess();
}
void ProcessSet::kill_agent(const std::string& name) { agents_.erase(name); }

void ProcessSet::stop() {
  for (auto& [name, agent] : agents_) agent.signal(SIGTERM);
  const auto deadline = Deadline::in(kGrace);
  for (auto& [name, agent] : agents_) agent.wait(deadline);
  agents_.clear();
  broker_.end(kGrace);
}

pid_t ProcessSet::agent_pid(const std::string& name) const {
  const auto agent = agents_.find(name);
  return agent == agents_.end() ? -1 : agent->second.pid();
}

std::vector<pid_t> ProcessSet::worker_pids(const std::string& name) const {
  return children_of(agent_pid(name));
}

Result<std::unique_ptr<client::PoolClient>> ProcessSet::client() const {
  SettingSources sources;
  sources.file = config_file();
  sources.environment = Environment{};
  sources.overrides = options_.settings;
  CENOTE_ASSIGN(const auto settings, Settings::load(sources));
  return make_client(settings);
}

std::string ProcessSet::log_tail(const std::string& who) const {
  std::ifstream file(folder_.file(who + ".log"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::size_t at = text.size();
  for (int lines = 0; at > 0 && lines < 3; ++lines)
    at = text.rfind('\n', at - 1) == std::string::npos ? 0 : text.rfind('\n', at - 1);
  auto tail = text.substr(text.empty() ? 0 : at);
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  while (!tail.empty() && tail.front() == '\n') tail.erase(0, 1);
  return tail;
}

}  // namespace cenote::pool::cli
