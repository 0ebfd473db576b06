#include "pool/agent/agent_metrics.h"

#include <algorithm>

namespace cenote::pool::agent {

class AgentMetrics::Counting final : public WorkerHost {
 public:
  Counting(WorkerHost& workers, Counter& started, Counter& refused)
      : workers_(workers), started_(started), failed_(refused) {}

  Result<Bytes> start(const WorkerSetup& setup, Deadline deadline) override {
    auto address = workers_.start(setup, deadline);
    (address ? started_ : failed_).add();
    return address;
  }
  void stop(const std::string& lease_id, std::uint64_t generation) override {
    workers_.stop(lease_id, generation);
  }
  [[nodiscard]] std::vector<DeviceUse> load(const std::string& lease_id,
                                            std::uint64_t generation) const override {
    return workers_.load(lease_id, generation);
  }

 private:
  WorkerHost& workers_;
  Counter &started_, &failed_;
};

AgentMetrics::AgentMetrics() = default;
AgentMetrics::~AgentMetrics() = default;

Result<std::unique_ptr<AgentMetrics>> AgentMetrics::create(WorkerHost& workers) {
  std::unique_ptr<AgentMetrics> made(new AgentMetrics);
  CENOTE_TRY(made->make(workers));
  return made;
}

Result<void> AgentMetrics::make(WorkerHost& workers) {
  CENOTE_ASSIGN(auto* const started,
                metrics_.counter("cenote_agent_workers_started_total", "Workers that were started."));
  CENOTE_ASSIGN(auto* const failed, metrics_.counter("cenote_agent_worker_starts_failed_total",
                                                     "Workers that did not come to listen."));
  constexpr auto help = "Workers that ended: their session was over, or they died.";
  CENOTE_ASSIGN(over_, metrics_.counter("cenote_agent_workers_ended_total", help, {{"how", "over"}}));
  CENOTE_ASSIGN(died_, metrics_.counter("cenote_agent_workers_ended_total", help, {{"how", "died"}}));
  CENOTE_ASSIGN(broker_, metrics_.gauge("cenote_agent_broker_reached",
                                        "1: the broker took the last heartbeat, 0: it did not."));
  counting_ = std::make_unique<Counting>(workers, *started, *failed);
  return {};
}

WorkerHost& AgentMetrics::host() { return *counting_; }

Result<std::string> AgentMetrics::text(const AgentReport& now) {
  const auto set = [&](std::string_view name, std::string_view help, double value,
                       const Labels& labels = {}) -> Result<void> {
    CENOTE_ASSIGN(auto* const gauge, metrics_.gauge(name, help, labels));
    gauge->set(value);
    return {};
  };
  const auto leased = static_cast<double>(
      std::ranges::count_if(now.devices, [](const auto& load) { return !load.lease_id.empty(); }));
  constexpr auto help = "GPUs of this agent, by whether a worker holds them.";
  CENOTE_TRY(set("cenote_agent_gpus", help, leased, {{"state", "leased"}}));
  CENOTE_TRY(
      set("cenote_agent_gpus", help, static_cast<double>(now.devices.size()) - leased, {{"state", "free"}}));
  CENOTE_TRY(set("cenote_agent_workers", "Workers that live.", static_cast<double>(now.live.size())));
  for (const auto& [device, leases, use] : now.devices) {
    const Labels labels{{"gpu", device.uuid}, {"model", device.model}};
    CENOTE_TRY(set("cenote_agent_gpu_memory_bytes", "Memory of the GPU.",
                   static_cast<double>(device.memory_bytes), labels));
    CENOTE_TRY(set("cenote_agent_gpu_memory_used_bytes", "Memory that its workers have allocated.",
                   static_cast<double>(use.memory_used), labels));
    CENOTE_TRY(set("cenote_agent_gpu_launches", "Kernels that the workers which live now have launched.",
                   static_cast<double>(use.launches), labels));
  }
  return prometheus_text(metrics_.snapshot());
}

}  // namespace cenote::pool::agent
