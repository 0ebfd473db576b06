// Pooled communicators, the client's side: it says what to do, the workers exchange among themselves.
#include <algorithm>
#include <utility>

#include "pool/remote/client_impl.h"

namespace cenote::pool::remote {
namespace {

std::string rank_name(std::size_t rank, const Lane& lane) {
  return "rank " + std::to_string(rank) + " (" + lane.name() + ")";
}

}  // namespace

class RemoteCommunicatorImpl final : public RemoteCommunicator {
 public:
  struct Rank {
    RemoteDevice* device;
    std::uint32_t comm;
  };

  RemoteCommunicatorImpl(RemoteDriverImpl& driver, std::vector<Rank> ranks)
      : driver_(driver), ranks_(std::move(ranks)) {
    const Session::Lock lock(driver_.session_);
    driver_.communicators_.insert(this);
  }
  ~RemoteCommunicatorImpl() override {
    const Session::Lock lock(driver_.session_);
    driver_.communicators_.erase(this);
    for (const auto& rank : ranks_) {
      if (rank.device->lane.issue(0, CommDestroy{rank.comm})) rank.device->lane.flush();
    }
  }

  Result<void> create(Deadline deadline);
  /// Ends the other ranks' waiting for one whose worker is lost; they may not have been connected to it yet.
  void spread_loss();
  [[nodiscard]] std::size_t size() const override { return ranks_.size(); }
  Result<void> allreduce(const std::vector<cuda::DevicePtr>& send, const std::vector<cuda::DevicePtr>& recv,
                         std::size_t count, DataType type, ReduceOp op,
                         const std::vector<cuda::Stream>& streams) override;
  Result<void> broadcast(const std::vector<cuda::DevicePtr>& buffers, std::size_t count, DataType type,
                         std::uint32_t root, const std::vector<cuda::Stream>& streams) override;
  std::optional<Error> failure() override;
  Result<std::vector<PairStats>> stats() override;

 private:
  using Targets = std::vector<RemoteDriverImpl::Target>;
  Result<Targets> targets(const char* stage, const std::vector<cuda::Stream>& streams, DataType type);
  Result<void> check(const char* stage, std::size_t rank, cuda::DevicePtr pointer, std::size_t bytes);
  std::optional<Error> lost_rank() const;
  /// Names the rank that the error speaks of as the user knows it.
  Error named(Error error) const;

  RemoteDriverImpl& driver_;
  std::vector<Rank> ranks_;
  std::optional<Error> failed_;
  bool spread_ = false;
};

Error RemoteCommunicatorImpl::named(Error error) const {
  for (std::size_t rank = ranks_.size(); rank-- > 0;) {
    if (error.peer != "rank " + std::to_string(rank)) continue;
    error.peer = rank_name(rank, ranks_[rank].device->lane);
    break;
  }
  return error;
}

std::optional<Error> RemoteCommunicatorImpl::lost_rank() const {
  std::optional<std::size_t> first;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& lane = ranks_[rank].device->lane;
    if (lane.lost() && (!first || lane.lost_before(ranks_[*first].device->lane))) first = rank;
  }
  if (!first) return std::nullopt;
  const auto& lane = ranks_[*first].device->lane;
  Error error{ErrorCode::peer_failed, "pooled communicator", "worker lost: " + lane.loss().message()};
  error.device = lane.name();
  error.peer = rank_name(*first, lane);
  return error;
}

void RemoteCommunicatorImpl::spread_loss() {
  const auto lost = lost_rank();
  if (!lost || std::exchange(spread_, true)) return;
  const auto reason = lost->peer + ": " + lost->cause;
  for (const auto& rank : ranks_) {
    if (rank.device->lane.issue(0, CommAbort{rank.comm, std::string_view(reason).substr(0, 1024)}))
      rank.device->lane.flush();
  }
}

void RemoteDriverImpl::spread_loss() {
  for (auto* communicator : communicators_) communicator->spread_loss();
}

Result<void> RemoteCommunicatorImpl::create(Deadline deadline) {
  const Session::Lock lock(driver_.session_);
  Reply root;
  auto& first = ranks_.front().device->lane;
  if (const auto status = first.ask(root, CommId{0, ranks_.front().comm}); status != cuda::Status::success) {
    return fail(Error{ErrorCode::peer_failed, "create communicator", root.detail, first.name(),
                      rank_name(0, first), "", static_cast<int>(status)});
  }
  const auto id = std::string(as_text(root.blob));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
  const auto timeout = static_cast<std::uint32_t>(std::min<std::int64_t>(left, 3'600'000));
  std::vector<Reply> replies(ranks_.size());
  std::vector<CommCreate> commands;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    commands.push_back({0, ranks_[rank].comm, rank, static_cast<std::uint32_t>(ranks_.size()), timeout, id});
    ranks_[rank].device->lane.start(replies[rank], commands.back());
  }
  // The first that fails ends the waiting of the others, which would otherwise last until the deadline.
  const auto settled = [&] {
    const auto over = [](const Reply& reply) { return reply.done; };
    const auto bad = [](const Reply& reply) { return reply.done && reply.status != cuda::Status::success; };
    return std::all_of(replies.begin(), replies.end(), over) ||
           std::any_of(replies.begin(), replies.end(), bad) || lost_rank().has_value();
  };
  driver_.session_.wait(settled, "the ranks of a communicator");
  const auto lost = lost_rank();
  const bool bad = lost || std::any_of(replies.begin(), replies.end(), [](const Reply& reply) {
                     return reply.done && reply.status != cuda::Status::success;
                   });
  std::optional<Error> failed = lost;
  // Whoever answered with an error before the others were told to end says why.
  for (std::size_t rank = 0; rank < ranks_.size() && bad && !failed; ++rank) {
    if (!replies[rank].done || replies[rank].status == cuda::Status::success) continue;
    auto& lane = ranks_[rank].device->lane;
    auto why = unpack_error(replies[rank].blob);
    failed = why ? named(std::move(*why))
                 : Error{ErrorCode::peer_failed, "create communicator", replies[rank].detail};
    if (failed->peer.empty()) failed->peer = rank_name(rank, lane);
    failed->device = lane.name();
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    auto& lane = ranks_[rank].device->lane;
    if (bad && !replies[rank].done && lane.issue(0, CommAbort{ranks_[rank].comm, "another rank failed"}))
      lane.flush();
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    (void)ranks_[rank].device->lane.finish(replies[rank]);
  if (failed) return fail(std::move(*failed));
  return {};
}

Result<RemoteCommunicatorImpl::Targets> RemoteCommunicatorImpl::targets(
    const char* stage, const std::vector<cuda::Stream>& streams, DataType type) {
  if (auto lost = lost_rank()) return fail(std::move(*lost));
  if (streams.size() != ranks_.size())
    return fail(ErrorCode::invalid_argument, stage,
                std::to_string(streams.size()) + " streams for " + std::to_string(ranks_.size()) + " ranks");
  if (size_of(type) == 0) return fail(ErrorCode::invalid_argument, stage, "no such element type");
  Targets found;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    RemoteDriverImpl::Target target{ranks_[rank].device, 0, 0};
    if (Handle::of(streams[rank]).bits > 2) {
      const auto status = driver_.target_of(streams[rank], target);
      if (status != cuda::Status::success || target.device != ranks_[rank].device) {
        return fail(Error{ErrorCode::driver_error, stage,
                          status == cuda::Status::success ? "its stream belongs to another device"
                                                          : driver_.thread_state().detail,
                          ranks_[rank].device->lane.name(), rank_name(rank, ranks_[rank].device->lane), "",
                          static_cast<int>(status)});
      }
    } else {
      target.stream = static_cast<std::uint32_t>(Handle::of(streams[rank]).bits);
    }
    found.push_back(target);
  }
  return found;
}

Result<void> RemoteCommunicatorImpl::check(const char* stage, std::size_t rank, cuda::DevicePtr pointer,
                                           std::size_t bytes) {
  RemoteDriverImpl::Place place;
  auto& device = *ranks_[rank].device;
  if (bytes == 0) return {};
  if (driver_.within(pointer, bytes, &device, place) == cuda::Status::success && place.device == &device)
    return {};
  return fail(
      Error{ErrorCode::invalid_argument, stage,
            "its buffer is no memory of that device, or shorter than " + std::to_string(bytes) + " bytes",
            device.lane.name(), rank_name(rank, device.lane)});
}

Result<void> RemoteCommunicatorImpl::allreduce(const std::vector<cuda::DevicePtr>& send,
                                               const std::vector<cuda::DevicePtr>& recv, std::size_t count,
                                               DataType type, ReduceOp op,
                                               const std::vector<cuda::Stream>& streams) {
  constexpr auto stage = "pooled allreduce";
  const RemoteDriverImpl::Call call(driver_);
  if (op < CENOTE_SUM || op > CENOTE_AVG)
    return fail(ErrorCode::invalid_argument, stage, "no such operation: " + std::to_string(op));
  CENOTE_ASSIGN(const auto to, targets(stage, streams, type));
  if (send.size() != ranks_.size() || recv.size() != ranks_.size())
    return fail(ErrorCode::invalid_argument, stage, "one buffer for each rank is needed");
  if (count > SIZE_MAX / size_of(type)) return fail(ErrorCode::invalid_argument, stage, "count is too large");
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    CENOTE_TRY(check(stage, rank, send[rank], count * size_of(type)));
    CENOTE_TRY(check(stage, rank, recv[rank], count * size_of(type)));
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    to[rank].device->lane.issue(
        to[rank].context,
        CommAllreduce{ranks_[rank].comm, send[rank], recv[rank], count, static_cast<std::uint32_t>(type),
                      static_cast<std::uint32_t>(op), to[rank].stream});
  }
  for (const auto& target : to) target.device->lane.flush();
  if (auto lost = lost_rank()) return fail(std::move(*lost));
  return {};
}

Result<void> RemoteCommunicatorImpl::broadcast(const std::vector<cuda::DevicePtr>& buffers, std::size_t count,
                                               DataType type, std::uint32_t root,
                                               const std::vector<cuda::Stream>& streams) {
  constexpr auto stage = "pooled broadcast";
  const RemoteDriverImpl::Call call(driver_);
  CENOTE_ASSIGN(const auto to, targets(stage, streams, type));
  if (buffers.size() != ranks_.size() || root >= ranks_.size())
    return fail(ErrorCode::invalid_argument, stage,
                "one buffer for each rank and a root among them are needed");
  if (count > SIZE_MAX / size_of(type)) return fail(ErrorCode::invalid_argument, stage, "count is too large");
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    CENOTE_TRY(check(stage, rank, buffers[rank], count * size_of(type)));
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    to[rank].device->lane.issue(to[rank].context,
                                CommBroadcast{ranks_[rank].comm, buffers[rank], count,
                                              static_cast<std::uint32_t>(type), root, to[rank].stream});
  }
  for (const auto& target : to) target.device->lane.flush();
  if (auto lost = lost_rank()) return fail(std::move(*lost));
  return {};
}

std::optional<Error> RemoteCommunicatorImpl::failure() {
  const Session::Lock lock(driver_.session_);
  if (failed_) return failed_;
  driver_.session_.progress();
  if (auto lost = lost_rank()) return failed_ = std::move(lost);
  std::vector<Reply> replies(ranks_.size());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    CommFailure command{0, ranks_[rank].comm};
    ranks_[rank].device->lane.start(replies[rank], command);
  }
  std::optional<Error> first;
  std::uint64_t first_named = 0;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    auto& lane = ranks_[rank].device->lane;
    if (lane.finish(replies[rank]) != cuda::Status::success || replies[rank].blob.empty()) continue;
    auto error = unpack_error(replies[rank].blob);
    if (!error) continue;
    // An error that names a rank says more than one that only says that others ended.
    const std::uint64_t names = error->peer.starts_with("rank ") ? 1 : 0;
    if (first && names <= first_named) continue;
    first = named(std::move(*error));
    if (first->device.empty()) first->device = lane.name();
    first_named = names;
  }
  if (auto lost = lost_rank()) first = std::move(lost);
  return failed_ = std::move(first);
}

Result<std::vector<PairStats>> RemoteCommunicatorImpl::stats() {
  const Session::Lock lock(driver_.session_);
  std::vector<Reply> replies(ranks_.size());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    CommStats command{0, ranks_[rank].comm};
    ranks_[rank].device->lane.start(replies[rank], command);
  }
  std::vector<PairStats> pairs;
  std::optional<Error> failed;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    auto& lane = ranks_[rank].device->lane;
    if (lane.finish(replies[rank]) != cuda::Status::success) {
      if (!failed)
        failed = Error{ErrorCode::peer_failed, "communicator statistics", replies[rank].detail, lane.name()};
      continue;
    }
    Reader in(replies[rank].blob);
    const auto count = in.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && !in.bad(); ++i) {
      PairStats pair{rank, in.get<std::uint32_t>(), in.text(), in.get<std::uint64_t>()};
      if (!in.bad() && pair.bytes_sent != 0) pairs.push_back(std::move(pair));
    }
    if (!in.finished())
      return fail(ErrorCode::protocol_error, "communicator statistics", "fields do not fit");
  }
  if (failed) return fail(std::move(*failed));
  return pairs;
}

Result<std::unique_ptr<RemoteCommunicator>> RemoteDriverImpl::communicator(
    const std::vector<cuda::DeviceId>& devices, Deadline deadline) {
  if (devices.empty()) return fail(ErrorCode::invalid_argument, "create communicator", "no devices");
  std::vector<RemoteCommunicatorImpl::Rank> ranks;
  {
    const Session::Lock lock(session_);
    for (const auto id : devices) {
      auto* device = device_at(id);
      if (device == nullptr)
        return fail(ErrorCode::invalid_argument, "create communicator", "no device " + std::to_string(id));
      ranks.push_back({device, device->next_comm++});
    }
  }
  auto communicator = std::make_unique<RemoteCommunicatorImpl>(*this, std::move(ranks));
  CENOTE_TRY(communicator->create(deadline));
  return communicator;
}

}  // namespace cenote::pool::remote
