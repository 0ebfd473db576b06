// The worker's session: greets its client, then serves the lanes until one of them is gone.
#include "pool/remote/worker.h"

#include <algorithm>
#include <array>

#include "pool/remote/worker_lane.h"

namespace cenote::pool::remote {
namespace {

constexpr auto close_patience = std::chrono::seconds(5);

class WorkerImpl final : public Worker {
 public:
  WorkerImpl(cuda::Driver& driver, transport::Fabric& fabric, WorkerOptions options)
      : options_(std::move(options)), shared_{driver, fabric, options_, std::make_shared<Waker>(fabric)} {
    for (std::uint32_t i = 0; i < options_.devices.size(); ++i) {
      const auto limit = i < options_.memory_limits.size() && options_.memory_limits[i] != 0
                             ? options_.memory_limits[i]
                             : UINT64_MAX;
      shared_.lanes.push_back(std::make_unique<WorkerLane>(shared_, i, options_.devices[i], limit));
    }
  }

  ~WorkerImpl() override { tear_down(); }
  WorkerImpl(const WorkerImpl&) = delete;
  WorkerImpl& operator=(const WorkerImpl&) = delete;

  Result<void> serve(const CancelFlag& cancel) override;
  [[nodiscard]] bool settled() const override { return settled_; }

  [[nodiscard]] WorkerLoad load() const override {
    WorkerLoad load;
    for (const auto& lane : shared_.lanes) load.devices.push_back(lane->load());
    return load;
  }

 private:
  Result<void> open(const CancelFlag& cancel);
  Result<void> welcome(std::span<const std::byte> message);
  Result<void> session(const CancelFlag& cancel);
  Result<bool> take_messages();
  Result<bool> advance();
  void doze(const CancelFlag& cancel, std::uint64_t seen);
  void tear_down();
  template <class C>
  bool send_message(const C& command);

  WorkerOptions options_;
  WorkerShared shared_;
  transport::Link link_;
  std::unique_ptr<transport::Region> region_;
  bool settled_ = true;
  bool pong_owed_ = false;
};

Result<void> WorkerImpl::open(const CancelFlag& cancel) {
  const auto deadline = Deadline::in(options_.connect_timeout);
  for (auto& lane : shared_.lanes) CENOTE_TRY(lane->open());
  CENOTE_ASSIGN(link_,
                shared_.fabric.connect(options_.client_fabric_address, "client of lease " + options_.lease_id,
                                       options_.channel, deadline));
  CENOTE_ASSIGN(region_, link_.transport->allocate(shared_.lanes.size() * ring_bytes));
  std::array<std::byte, 512> message;
  for (;;) {
    CENOTE_ASSIGN(const auto size, link_.endpoint->receive(message));
    if (size) return welcome(std::span(message).first(*size));
    if (auto failure = link_.endpoint->failure()) return fail(*failure);
    CENOTE_TRY(shared_.fabric.wait(deadline, &cancel, "the client's hello"));
  }
}

Result<void> WorkerImpl::welcome(std::span<const std::byte> message) {
  transport::RemoteKey client;
  CENOTE_TRY(dispatch(message, [&](const auto& command) -> Result<void> {
    if constexpr (std::is_same_v<std::decay_t<decltype(command)>, Hello>) {
      if (command.version != protocol_version || command.lanes != shared_.lanes.size() ||
          command.slots != ring_slots || command.key.size() > client.bytes.size())
        return fail(ErrorCode::protocol_error, "greet client",
                    "it speaks version " + std::to_string(command.version) + " for " +
                        std::to_string(command.lanes) + " devices, this worker version " +
                        std::to_string(protocol_version) + " for " + std::to_string(shared_.lanes.size()));
      std::copy(command.key.begin(), command.key.end(), client.bytes.begin());
      client.size = static_cast<std::uint8_t>(command.key.size());
      return {};
    } else {
      return fail(ErrorCode::protocol_error, "greet client", "its first message is no hello");
    }
  }));
  for (std::size_t i = 0; i < shared_.lanes.size(); ++i)
    shared_.lanes[i]->attach(*link_.endpoint, region_->bytes().subspan(i * ring_bytes, ring_bytes), client);
  std::array<std::byte, 256> answer;
  const auto& key = region_->key();
  const auto size = encode(Welcome{protocol_version, static_cast<std::uint32_t>(shared_.lanes.size()),
                                   ring_slots, std::span(key.bytes).first(key.size)},
                           answer);
  return link_.endpoint->send(std::span(answer).first(size));
}

// Messages come beside the rings. The ends of host functions do: in the ring they would stand behind commands
// that wait for them. So do questions for a sign of life.
Result<bool> WorkerImpl::take_messages() {
  std::array<std::byte, 512> message;
  for (bool moved = false;; moved = true) {
    CENOTE_ASSIGN(const auto size, link_.endpoint->receive(message));
    if (!size) return moved;
    CENOTE_TRY(dispatch(std::span(message).first(*size), [&](const auto& command) -> Result<void> {
      using C = std::decay_t<decltype(command)>;
      if constexpr (std::is_same_v<C, HostFuncDone>) {
        if (command.lane < shared_.lanes.size()) {
          shared_.lanes[command.lane]->host_function_done(command.id);
          return {};
        }
      } else if constexpr (std::is_same_v<C, Ping>) {
        pong_owed_ = true;
        return {};
      }
      return fail(ErrorCode::protocol_error, "receive message",
                  "neither a host function's end, nor for a lane, nor a ping");
    }));
  }
}

template <class C>
bool WorkerImpl::send_message(const C& command) {
  std::array<std::byte, 64> message;
  return link_.endpoint->send(std::span(message).first(encode(command, message))).has_value();
}

Result<bool> WorkerImpl::advance() {
  bool moved = shared_.fabric.progress();
  std::array<transport::Completion, 32> done;
  while (link_.endpoint->poll(done) != 0) moved = true;
  CENOTE_ASSIGN(const bool told, take_messages());
  moved = moved || told;
  // Refused while the client has not taken earlier messages; a broken endpoint says so itself, below.
  if (pong_owed_) pong_owed_ = !send_message(Pong{});
  for (auto& lane : shared_.lanes) {
    CENOTE_ASSIGN(const bool stepped, lane->step());
    moved = moved || stepped;
  }
  if (shared_.goodbye) return true;
  if (auto failure = link_.endpoint->failure()) return fail(std::move(*failure));
  return moved;
}

void WorkerImpl::doze(const CancelFlag& cancel, std::uint64_t seen) {
  Clock::duration most = std::chrono::seconds(1);
  for (const auto& lane : shared_.lanes) most = std::min(most, lane->patience());
  if (pong_owed_) most = std::min<Clock::duration>(most, std::chrono::milliseconds(1));
  shared_.waker->doze();
  // Ends by what arrives, by a fence, or by time; what it was is found out by looking.
  if (shared_.waker->events() == seen)
    (void)shared_.fabric.wait(Deadline::in(most), &cancel, "commands of lease " + options_.lease_id);
  shared_.waker->rise();
}

Result<void> WorkerImpl::session(const CancelFlag& cancel) {
  CENOTE_TRY(open(cancel));
  shared_.announce = [this] { send_message(Busy{}); };
  while (!shared_.goodbye) {
    if (cancel.raised())
      return fail(ErrorCode::cancelled, "serve lease " + options_.lease_id, std::string(ended_by_its_agent));
    const auto seen = shared_.waker->events();
    CENOTE_ASSIGN(const bool moved, advance());
    if (!moved) doze(cancel, seen);
  }
  return {};
}

void WorkerImpl::tear_down() {
  for (auto& lane : shared_.lanes) lane->end_contexts();
  for (auto& lane : shared_.lanes) lane->give_back();
}

Result<void> WorkerImpl::serve(const CancelFlag& cancel) {
  auto ended = session(cancel);
  // A client that leaves closes at once: its goodbye may be overtaken, or find no room in the ring.
  const auto broken = link_.endpoint ? link_.endpoint->failure() : std::nullopt;
  if (broken && (shared_.goodbye || broken->cause.ends_with(closed_by_client))) ended = Result<void>{};
  const auto until = Deadline::in(close_patience);
  for (auto& lane : shared_.lanes) settled_ = lane->settle(until) && settled_;
  if (link_.endpoint) link_.endpoint->close(ended ? "the session is over" : ended.error().message());
  shared_.waker->detach();
  if (settled_) {
    tear_down();
  } else if (ended) {
    ended = fail(ErrorCode::driver_error, "end lease " + options_.lease_id,
                 "a device did not finish its work in 5 s");
  }
  return ended;
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::create(cuda::Driver& driver, transport::Fabric& fabric,
                                               WorkerOptions options) {
  if (options.devices.empty() || options.devices.size() > max_lanes)
    return fail(ErrorCode::invalid_argument, "create worker",
                std::to_string(options.devices.size()) + " devices; 1 to " + std::to_string(max_lanes) +
                    " are possible");
  return std::make_unique<WorkerImpl>(driver, fabric, std::move(options));
}

}  // namespace cenote::pool::remote
