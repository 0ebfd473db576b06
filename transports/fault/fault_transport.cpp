#include "transports/fault/fault_transport.h"

#include <algorithm>
#include <string>
#include <utility>

#include "transports/fault/fault_endpoint.h"

namespace cenote::transport {
namespace fault {
namespace {

constexpr std::uint64_t stall_every = 64;  // steps; for an eighth of them nothing is done
constexpr std::uint64_t stall_steps = 8;

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::shared_ptr<MemberState> member, std::unique_ptr<Transport> inside)
      : name_(inside->name()),
        limits_(inside->limits()),
        address_(inside->address()),
        core_(std::make_shared<FaultCore>(std::move(member), std::move(inside))) {}
  ~FaultTransport() override {
    const std::lock_guard lock(core_->inside_mutex);
    core_->inside.reset();
  }
  FaultTransport(const FaultTransport&) = delete;
  FaultTransport& operator=(const FaultTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] Limits limits() const override { return limits_; }
  [[nodiscard]] const Bytes& address() const override { return address_; }
  [[nodiscard]] Result<void> reachable(std::span<const std::byte> peer_address) const override {
    CENOTE_TRY(alive());
    return core_->inside->reachable(peer_address);
  }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> peer_address, std::string peer_name,
                                            std::uint32_t channel, Deadline deadline) override {
    CENOTE_TRY(alive());
    CENOTE_ASSIGN(auto inside, core_->inside->connect(peer_address, std::move(peer_name), channel, deadline));
    return std::make_unique<FaultEndpoint>(core_, std::move(inside), channel);
  }
  Result<std::unique_ptr<Region>> allocate(std::size_t bytes) override {
    CENOTE_TRY(alive());
    return core_->inside->allocate(bytes);
  }
  Result<std::unique_ptr<Region>> register_memory(const MemoryDescription& memory) override {
    CENOTE_TRY(alive());
    return core_->inside->register_memory(memory);
  }

  bool progress() override {
    if (silent()) return std::exchange(core_->happened, false);
    if (stalls()) return false;
    bool any = core_->inside->progress();
    for (std::size_t i = 0; i < core_->endpoints.size(); ++i) any = core_->endpoints[i]->advance() || any;
    return std::exchange(core_->happened, false) || any;
  }
  [[nodiscard]] std::span<const int> wait_fds() const override {
    return silent() ? std::span<const int>{} : core_->inside->wait_fds();
  }
  bool arm() override {
    if (silent()) return true;
    if (stalled_ > 0 || core_->happened ||
        std::ranges::any_of(core_->endpoints, [](const auto* one) { return one->restless(); }))
      return false;
    armed_ = core_->inside->arm();
    return armed_;
  }
  void disarm() override {
    if (std::exchange(armed_, false) && core_->inside) core_->inside->disarm();
  }
  void interrupt() override {
    const std::lock_guard lock(core_->inside_mutex);
    if (core_->inside) core_->inside->interrupt();
  }

 private:
  [[nodiscard]] bool silent() const { return !core_->inside || core_->member->frozen; }
  [[nodiscard]] Result<void> alive() const {
    if (core_->killed) return fail(*core_->killed);
    return {};
  }
  bool stalls() {
    const std::uint64_t step = steps_++;
    const auto& plan = core_->member->plan;
    if (step % stall_every == 0 && plan.has(Fault::stall) &&
        plan.number(Fault::stall, 0, step / stall_every) % 3 == 0) {
      core_->member->count(Fault::stall);
      stalled_ = stall_steps;
    }
    if (stalled_ == 0) return false;
    --stalled_;
    return true;
  }

  std::string name_;
  Limits limits_;
  Bytes address_;
  std::shared_ptr<FaultCore> core_;
  std::uint64_t steps_ = 0, stalled_ = 0;
  bool armed_ = false;
};

}  // namespace
}  // namespace fault

FaultMember::FaultMember(const FaultPlan& plan, FaultTally* tally)
    : state_(std::make_shared<fault::MemberState>()) {
  state_->plan = plan;
  state_->tally = tally;
}

std::unique_ptr<Transport> FaultMember::wrap(std::unique_ptr<Transport> inside) const {
  return std::make_unique<fault::FaultTransport>(state_, std::move(inside));
}

}  // namespace cenote::transport
