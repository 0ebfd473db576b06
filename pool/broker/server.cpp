#include "pool/broker/server.h"

#include <grpcpp/server.h>
#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "pool/broker/core.h"
#include "pool/broker/service.h"
#include "pool/key_file.h"
#include "pool/proto/channel.h"
#include "pool/store/sqlite.h"
#include "runtime/log.h"
#include "runtime/metrics_server.h"

namespace cenote::pool {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kDrain = std::chrono::seconds(1);

/// Calls the core's tick until it is told to stop.
class Ticker {
 public:
  explicit Ticker(BrokerCore& core) : thread_([this, &core] { run(core); }) {}
  ~Ticker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void run(BrokerCore& core) {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kTick, [this] { return stopping_; })) {
      lock.unlock();
      core.tick();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

Result<void> make_folder(const std::filesystem::path& path) {
  const auto stage = "make the state folder " + path.string();
  if (path.empty()) {
    return fail(Error{ErrorCode::invalid_argument, "start the broker", "it has no state folder"}.fix(
        "set broker.state_dir"));
  }
  std::error_code failed;
  const bool made = std::filesystem::create_directories(path, failed);
  if (failed) return fail(system_error(stage, failed.value()));
  if (made && ::chmod(path.c_str(), 0700) != 0) return fail(system_error(stage, errno));
  return {};
}

std::string with_port(const std::string& listen, int port) {
  return listen.substr(0, listen.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

// In the order of their making; they end in the reverse.
struct BrokerServer::Parts {
  SystemClock clock;
  std::unique_ptr<BrokerCore> core;
  std::unique_ptr<BrokerService> service;
  Listening listening;
  std::unique_ptr<Ticker> ticker;
  std::unique_ptr<MetricsServer> metrics;
  std::string endpoint;
  std::once_flag stopped;
};

Result<std::unique_ptr<BrokerServer>> BrokerServer::start(const BrokerServerOptions& options, Logger& log) {
  CENOTE_ASSIGN(const auto credentials, tls::load_as(options.certificate, tls::Role::broker));
  CENOTE_TRY(make_folder(options.state_dir));
  auto parts = std::make_unique<Parts>();
  // The store's lock comes first: it also guards the key, and a second broker hears of the first by its pid.
  CENOTE_ASSIGN(auto store, open_sqlite_store(options.state_dir / "broker.db"));
  CENOTE_ASSIGN(auto key, load_or_create_key(options.state_dir / "broker.key"));
  CENOTE_ASSIGN(parts->core,
                BrokerCore::open(std::move(store), std::move(key), parts->clock, log, options.policy));
  parts->service = std::make_unique<BrokerService>(*parts->core);
  CENOTE_ASSIGN(parts->listening, pool::listen(options.listen, credentials, *parts->service));
  parts->endpoint = with_port(options.listen, parts->listening.port);
  parts->ticker = std::make_unique<Ticker>(*parts->core);
  if (!options.metrics.empty()) {
    auto started =
        MetricsServer::start(options.metrics, [&core = *parts->core] { return core.metrics_text(); });
    if (!started) return fail(std::move(started).error().fix("another address: setting broker.metrics"));
    parts->metrics = std::move(*started);
  }
  log.info("broker listens on {}, state in {}", parts->endpoint, options.state_dir.string());
  return std::unique_ptr<BrokerServer>(new BrokerServer(std::move(parts)));
}

BrokerServer::BrokerServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

BrokerServer::~BrokerServer() { stop(); }

void BrokerServer::stop() {
  std::call_once(parts_->stopped, [this] {
    parts_->listening.server->Shutdown(std::chrono::system_clock::now() + kDrain);
    parts_->listening.server.reset();
    parts_->ticker.reset();
    parts_->metrics.reset();
    parts_->service.reset();
    parts_->core.reset();  // closes the store, frees its lock
  });
}

int BrokerServer::port() const { return parts_->listening.port; }
const std::string& BrokerServer::endpoint() const { return parts_->endpoint; }
std::string BrokerServer::metrics_address() const {
  return parts_->metrics == nullptr ? std::string() : parts_->metrics->address();
}

}  // namespace cenote::pool
