#include "pool/agent/agent.h"

#include <fmt/format.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "pool/agent/agent_metrics.h"
#include "pool/agent/broker_port.h"
#include "pool/agent/core.h"
#include "pool/agent/device_lock.h"
#include "pool/agent/heartbeat_loop.h"
#include "pool/agent/local_driver.h"
#include "pool/agent/service.h"
#include "pool/agent/worker_process.h"
#include "pool/proto/channel.h"
#include "runtime/log.h"
#include "runtime/metrics_server.h"
#include "runtime/process.h"

namespace cenote::pool::agent {

namespace {

constexpr auto kTick = std::chrono::milliseconds(100);

std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What clients dial: the address of the setting, else the listening one with the port it really got. "Any
// address" is no address to dial, so the host's name takes its place.
std::string dial_address(const AgentOptions& options, int port) {
  if (!options.advertise.empty()) return options.advertise;
  auto host = options.listen.substr(0, options.listen.rfind(':'));
  if (host.empty() || host == "0.0.0.0" || host == "[::]") {
    char name[256] = {};
    host = ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
  }
  return fmt::format("{}:{}", host, port);
}

Result<std::string> new_instance() {
  std::array<std::byte, 16> bytes{};
  CENOTE_TRY(random_bytes(bytes));
  return to_hex(bytes);
}

class RunningAgent final : public Agent {
 public:
  RunningAgent(AgentOptions options, Logger& log) : options_(std::move(options)), log_(log) {}

  ~RunningAgent() override {
    metrics_server_.reset();  // its thread asks the core
    if (ticker_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
      }
      changed_.notify_all();
      ticker_.join();
    }
    loop_.reset();
    if (listening_.server) listening_.server->Shutdown(std::chrono::system_clock::now());
    listening_.server.reset();
    workers_.reset();  // its thread calls the core
  }

  Result<void> start() {
    CENOTE_TRY(open_devices());
    CENOTE_ASSIGN(auto cages, make_cages());
    CENOTE_ASSIGN(workers_, WorkerProcesses::create({.executable = options_.worker_executable,
                                                     .silence = 2 * options_.worker_timeout,
                                                     .cages = std::move(cages)}));
    CoreOptions core;
    core.agent = options_.name;
    core.devices = devices_;
    core.driver = spec_;
    core.fabric = options_.fabric;
    core.collectives = options_.collectives;
    core.log = options_.log;
    core.clock_drift_ms = options_.clock_drift_ms;
    core.now_unix_ms = unix_ms;
    CENOTE_ASSIGN(metrics_, AgentMetrics::create(*workers_));
    core_.emplace(std::move(core), metrics_->host());
    workers_->on_exit([this](const std::string& lease, std::uint64_t generation, const WorkerExit& exit) {
      log_.write(exit.failed ? LogLevel::warn : LogLevel::info, "worker ended",
                 {{"lease", lease}, {"reason", exit.reason.empty() ? "session over" : exit.reason}});
      metrics_->worker_ended(exit);
      core_->worker_ended(lease, generation, exit);
    });
    service_ = make_agent_service(*core_, log_);
    CENOTE_ASSIGN(listening_, listen(options_.listen, options_.credentials, *service_));
    endpoint_ = dial_address(options_, listening_.port);
    CENOTE_ASSIGN(auto instance, new_instance());
    broker_ = make_broker_port({.broker = options_.broker,
                                .agent = options_.name,
                                .endpoint = endpoint_,
                                .instance = std::move(instance),
                                .credentials = options_.credentials});
    HeartbeatOptions heartbeat;
    heartbeat.on_contact = [this](const Error* error) { contact(error); };
    loop_.emplace(*core_, *broker_, std::move(heartbeat));
    loop_->start();
    ticker_ = std::thread([this] { tick(); });
    return serve_metrics();
  }

  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::string metrics_address() const override {
    return metrics_server_ == nullptr ? std::string() : metrics_server_->address();
  }
  [[nodiscard]] const std::vector<LocalDevice>& devices() const override { return devices_; }

  Result<void> wait_registered(Deadline deadline, const CancelFlag* cancel) override {
    std::unique_lock lock(mutex_);
    while (!registered_) {
      if (cancel != nullptr && cancel->raised())
        return fail(ErrorCode::cancelled, "register with the broker", "cancelled");
      if (deadline.passed()) {
        if (last_error_) return fail(*last_error_);
        return fail(ErrorCode::deadline_exceeded, "register with the broker " + options_.broker,
                    "no answer yet");
      }
      changed_.wait_for(lock, std::min<Clock::duration>(deadline.left(), std::chrono::milliseconds(50)));
    }
    return {};
  }

  void stop(Deadline deadline) override {
    // First the core, which refuses new sessions from now on: whoever waits for the end of one hears why it
    // ended.
    core_->shut_down(deadline);
    listening_.server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    loop_->finish();
  }

 private:
  // The driver is open only while the devices are listed: an idle agent holds no GPU memory.
  Result<void> open_devices() {
    // An emulated card is a card of this agent in this pool; a real one brings its uuid with it.
    CENOTE_ASSIGN(spec_, parse_devices(options_.devices, options_.name + "@" + options_.broker));
    spec_.seed = options_.emulator_seed;
    spec_.adversarial = options_.emulator_adversarial;
    CENOTE_ASSIGN(const auto driver, open_driver(spec_));
    CENOTE_ASSIGN(devices_, list_devices(*driver, spec_));
    std::vector<std::string> uuids;
    uuids.reserve(devices_.size());
    for (const auto& device : devices_) uuids.push_back(device.uuid);
    CENOTE_ASSIGN(locks_, DeviceLocks::take(uuids));
    return {};
  }

  Result<Cages> make_cages() {
    CENOTE_ASSIGN(auto plan, plan_cage(options_.cage));
    auto cages = Cages::create(std::move(plan));
    for (const auto& rung : cages.rungs())
      log_.info("cage of workers: {} {}: {}", rung.name, rung.taken ? "yes" : "no", rung.reason);
    CENOTE_TRY(check_required(cages.rungs(), options_.cage.require));
    return cages;
  }

  Result<void> serve_metrics() {
    if (options_.metrics.empty()) return {};
    auto started = MetricsServer::start(options_.metrics, [this] {
      auto text = metrics_->text(core_->report());
      if (text) return std::move(*text);
      log_.write(LogLevel::error, text.error());
      return "# " + text.error().cause + "\n";
    });
    if (!started) return fail(std::move(started).error().fix("another address: setting agent.metrics"));
    metrics_server_ = std::move(*started);
    return {};
  }

  void contact(const Error* error) {
    metrics_->broker_reached(error == nullptr);
    if (error == nullptr) {
      log_.info("broker {} reached, {} devices registered", options_.broker, devices_.size());
    } else {
      log_.write(LogLevel::warn, *error);
    }
    const std::lock_guard lock(mutex_);
    registered_ = registered_ || error == nullptr;
    if (error != nullptr) last_error_ = *error;
    changed_.notify_all();
  }

  void tick() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kTick, [this] { return stopping_; })) {
      lock.unlock();
      core_->tick();
      lock.lock();
    }
  }

  const AgentOptions options_;
  Logger& log_;
  DriverSpec spec_;
  std::vector<LocalDevice> devices_;
  DeviceLocks locks_;
  std::unique_ptr<WorkerProcesses> workers_;
  std::unique_ptr<AgentMetrics> metrics_;
  std::optional<AgentCore> core_;
  std::unique_ptr<grpc::Service> service_;
  Listening listening_;
  std::string endpoint_;
  std::unique_ptr<BrokerPort> broker_;
  std::optional<HeartbeatLoop> loop_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false, registered_ = false;
  std::optional<Error> last_error_;
  std::thread ticker_;
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace

Result<std::unique_ptr<Agent>> Agent::start(AgentOptions options, Logger& log) {
  auto agent = std::make_unique<RunningAgent>(std::move(options), log);
  CENOTE_TRY(agent->start());
  return agent;
}

}  // namespace cenote::pool::agent
