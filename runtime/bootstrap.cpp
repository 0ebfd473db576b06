// The collectives of a bootstrap, over the tree that join_tree made. Contributions travel up one by one,
// results down one by one, so that rank 0 always knows exactly who is missing.
#include "runtime/bootstrap.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "runtime/bootstrap_join.h"
#include "runtime/bootstrap_wire.h"
#include "runtime/rank_name.h"

namespace cenote {
namespace {

using namespace bootstrap;

constexpr int quick_turns = 200;
constexpr auto between_turns = std::chrono::milliseconds(1);

class Group final : public Bootstrap {
 public:
  Group(std::uint32_t rank, std::uint32_t size, Tree tree, const CancelFlag* cancel)
      : rank_(rank), size_(size), cancel_(cancel), tree_(std::move(tree)) {}

  [[nodiscard]] std::uint32_t rank() const override { return rank_; }
  [[nodiscard]] std::uint32_t size() const override { return size_; }

  Result<std::vector<Bytes>> allgather(std::span<const std::byte> mine, Deadline deadline) override;
  Result<Bytes> broadcast(std::span<const std::byte> mine, Deadline deadline) override;
  Result<void> barrier(Deadline deadline) override;
  Result<void> barrier_when(const std::function<Result<bool>()>& ready, Deadline deadline) override;

 private:
  Result<void> begin(Operation operation, std::size_t bytes, std::size_t most);
  void contribute(std::uint32_t rank, std::span<const std::byte> bytes);
  void add_entry(std::uint32_t rank, std::span<const std::byte> bytes);
  void add_result(Kind kind, std::span<const std::byte> bytes);
  void to_children(const SharedFrame& frame);
  Writer header(Kind kind) const;

  Result<void> finish(Deadline deadline);
  Result<void> step();
  Result<void> read_from(Neighbour& peer, bool is_parent);
  Result<void> take(const Neighbour& peer, bool is_parent, std::span<const std::byte> frame);
  Result<void> take_contribution(const Neighbour& peer, Reader& reader);
  Result<void> take_abort(const Neighbour& peer, Reader& reader);
  void wait(Deadline deadline);
  [[nodiscard]] bool all_contributed() const { return contributed_ == size_; }
  [[nodiscard]] bool has_result() const;
  [[nodiscard]] bool needs_children() const;
  Result<void> check_time(Deadline deadline);

  [[nodiscard]] std::string stage() const;
  Error broken(ErrorCode code, std::uint32_t culprit, const std::string& cause, bool name_peer = true);
  template <class F>
  void each_peer(F&& use) {
    if (tree_.parent) use(*tree_.parent, true);
    for (auto& child : tree_.children) use(child, false);
  }

  const std::uint32_t rank_;
  const std::uint32_t size_;
  const CancelFlag* const cancel_;
  Tree tree_;
  std::optional<Error> error_;  ///< the first failure; the group is of no use after it

  // the operation in progress
  std::uint64_t sequence_ = 0;
  Operation operation_ = Operation::barrier;
  std::vector<bool> has_contributed_;  ///< by rank: of this subtree, as known here
  std::uint32_t contributed_ = 0;
  std::vector<Bytes> entries_;  ///< allgather's result, by rank
  std::vector<bool> has_entry_;
  std::uint32_t entered_ = 0;
  Bytes data_;
  bool released_ = false;  ///< barrier: everybody is there; broadcast: data_ is there
};

std::string Group::stage() const {
  return to_string(operation_) + " " + std::to_string(sequence_) + " of the bootstrap as rank " +
         std::to_string(rank_) + " of " + std::to_string(size_);
}

/// Remembers the first failure and tells the neighbours, without waiting.
Error Group::broken(ErrorCode code, std::uint32_t culprit, const std::string& cause, bool name_peer) {
  error_ = Error{code, stage(), cause};
  if (name_peer) error_->peer = rank_name(culprit);
  Writer writer;
  const auto told = make_frame(
      writer.put(Kind::abort).put(sequence_).put(culprit).text(rank_name(rank_) + ": " + cause).bytes());
  each_peer([&told](Neighbour& peer, bool) {
    peer.channel.queue(told);
    peer.channel.flush();
  });
  return *error_;
}

Result<void> Group::begin(Operation operation, std::size_t bytes, std::size_t most) {
  if (error_) return fail(*error_);
  ++sequence_;
  operation_ = operation;
  contributed_ = entered_ = 0;
  released_ = false;
  data_.clear();
  entries_.clear();
  if (bytes > most)
    return fail(broken(ErrorCode::invalid_argument, rank_,
                       std::to_string(bytes) + " bytes, at most " + std::to_string(most) + " are allowed",
                       false));
  if (operation == Operation::broadcast) return {};
  has_contributed_.assign(size_, false);
  if (operation == Operation::barrier) return {};
  has_entry_.assign(size_, false);
  entries_.resize(size_);
  return {};
}

Writer Group::header(Kind kind) const {
  Writer writer;
  writer.put(kind).put(sequence_).put(operation_);
  return writer;
}

void Group::to_children(const SharedFrame& frame) {
  for (auto& child : tree_.children) child.channel.queue(frame);
}

void Group::contribute(std::uint32_t rank, std::span<const std::byte> bytes) {
  has_contributed_[rank] = true;
  ++contributed_;
  if (tree_.parent) {
    tree_.parent->channel.queue(header(Kind::contribution).put(rank).raw(bytes).bytes());
    return;
  }
  if (operation_ == Operation::allgather) add_entry(rank, bytes);
  if (operation_ == Operation::barrier && all_contributed()) add_result(Kind::release, {});
}

void Group::add_entry(std::uint32_t rank, std::span<const std::byte> bytes) {
  has_entry_[rank] = true;
  ++entered_;
  entries_[rank].assign(bytes.begin(), bytes.end());
  if (!tree_.children.empty()) to_children(make_frame(header(Kind::entry).put(rank).raw(bytes).bytes()));
}

void Group::add_result(Kind kind, std::span<const std::byte> bytes) {
  released_ = true;
  data_.assign(bytes.begin(), bytes.end());
  if (!tree_.children.empty()) to_children(make_frame(header(kind).raw(bytes).bytes()));
}

bool Group::has_result() const { return operation_ == Operation::allgather ? entered_ == size_ : released_; }

/// While a child waits for the result, silence or an end of its connection matters; afterwards it may leave.
bool Group::needs_children() const { return operation_ != Operation::broadcast && !has_result(); }

Result<std::vector<Bytes>> Group::allgather(std::span<const std::byte> mine, Deadline deadline) {
  CENOTE_TRY(begin(Operation::allgather, mine.size(), max_contribution));
  contribute(rank_, mine);
  CENOTE_TRY(finish(deadline));
  return std::move(entries_);
}

Result<Bytes> Group::broadcast(std::span<const std::byte> mine, Deadline deadline) {
  CENOTE_TRY(begin(Operation::broadcast, rank_ == 0 ? mine.size() : 0, max_broadcast));
  if (rank_ == 0) add_result(Kind::data, mine);
  CENOTE_TRY(finish(deadline));
  return std::move(data_);
}

Result<void> Group::barrier(Deadline deadline) {
  CENOTE_TRY(begin(Operation::barrier, 0, 0));
  contribute(rank_, {});
  return finish(deadline);
}

Result<void> Group::barrier_when(const std::function<Result<bool>()>& ready, Deadline deadline) {
  CENOTE_TRY(begin(Operation::barrier, 0, 0));
  for (int turn = 0;; ++turn) {
    CENOTE_TRY(step());
    const auto is_ready = ready();
    if (!is_ready) {
      const auto culprit = rank_of(is_ready.error().peer).value_or(rank_);
      (void)broken(is_ready.error().code, culprit < size_ ? culprit : rank_, is_ready.error().cause);
      error_ = is_ready.error();
      return fail(is_ready.error());
    }
    if (*is_ready) break;
    if (turn < quick_turns) {
      std::this_thread::yield();
    } else {
      wait(Deadline::in(between_turns));
    }
  }
  contribute(rank_, {});
  return finish(deadline);
}

Result<void> Group::finish(Deadline deadline) {
  for (;;) {
    CENOTE_TRY(step());
    bool unsent = false;
    each_peer([&unsent](Neighbour& peer, bool) { unsent = unsent || peer.channel.unsent(); });
    if (has_result() && !unsent) return {};
    CENOTE_TRY(check_time(deadline));
    wait(deadline);
  }
}

Result<void> Group::step() {
  Result<void> outcome;
  each_peer([&](Neighbour& peer, bool is_parent) {
    if (outcome && (is_parent ? !has_result() : needs_children())) outcome = read_from(peer, is_parent);
  });
  CENOTE_TRY(outcome);
  each_peer([&](Neighbour& peer, bool is_parent) {
    const bool wanted = peer.channel.unsent();
    peer.channel.flush();
    if (!outcome || !wanted || !peer.channel.closed()) return;
    // It may have said why it left.
    outcome = read_from(peer, is_parent);
    if (outcome) outcome = fail(broken(ErrorCode::peer_failed, peer.rank, peer.channel.close_cause()));
  });
  return outcome;
}

Result<void> Group::read_from(Neighbour& peer, bool is_parent) {
  peer.channel.fill();
  for (;;) {
    auto frame = peer.channel.next();
    if (!frame) return fail(broken(ErrorCode::protocol_error, peer.rank, frame.error().cause));
    if (*frame) {
      CENOTE_TRY(take(peer, is_parent, **frame));
      if (is_parent && has_result()) return {};  // what follows belongs to the next operation
      peer.channel.fill();
    } else if (peer.channel.closed()) {
      return fail(broken(ErrorCode::peer_failed, peer.rank, peer.channel.close_cause()));
    } else {
      return {};
    }
  }
}

Result<void> Group::take(const Neighbour& peer, bool is_parent, std::span<const std::byte> frame) {
  Reader reader(frame);
  const auto kind = reader.get<Kind>();
  const auto sequence = reader.get<std::uint64_t>();
  if (kind == Kind::abort) return take_abort(peer, reader);
  const auto operation = reader.get<Operation>();
  if (!reader.bad() && (sequence != sequence_ || operation != operation_))
    return fail(broken(ErrorCode::invalid_argument, peer.rank,
                       "it calls " + to_string(operation) + " " + std::to_string(sequence) +
                           ": every rank must make the same calls in the same order"));
  if (!reader.bad() && !is_parent && kind == Kind::contribution) return take_contribution(peer, reader);
  if (!reader.bad() && is_parent) {
    if (kind == Kind::entry && operation_ == Operation::allgather) {
      const auto rank = reader.get<std::uint32_t>();
      if (!reader.bad() && rank < size_ && !has_entry_[rank] && reader.left() <= max_contribution) {
        add_entry(rank, reader.raw(reader.left()));
        return {};
      }
    }
    if ((kind == Kind::release && operation_ == Operation::barrier && reader.finished()) ||
        (kind == Kind::data && operation_ == Operation::broadcast)) {
      add_result(kind, reader.raw(reader.left()));
      return {};
    }
  }
  return fail(broken(ErrorCode::protocol_error, peer.rank, "it sent a frame that makes no sense"));
}

Result<void> Group::take_contribution(const Neighbour& peer, Reader& reader) {
  const auto rank = reader.get<std::uint32_t>();
  if (reader.bad() || rank >= size_ || !in_subtree(rank, peer.rank) || has_contributed_[rank] ||
      reader.left() > max_contribution)
    return fail(
        broken(ErrorCode::protocol_error, peer.rank, "it sent a contribution that is not its to send"));
  contribute(rank, reader.raw(reader.left()));
  return {};
}

Result<void> Group::take_abort(const Neighbour& peer, Reader& reader) {
  const auto culprit = reader.get<std::uint32_t>();
  const auto cause = reader.text();
  if (!reader.finished())
    return fail(broken(ErrorCode::protocol_error, peer.rank, "it sent an abort that makes no sense"));
  return fail(broken(ErrorCode::peer_failed, culprit < size_ ? culprit : peer.rank, cause));
}

Result<void> Group::check_time(Deadline deadline) {
  if (cancel_ != nullptr && cancel_->raised())
    return fail(broken(ErrorCode::cancelled, rank_, "cancelled", false));
  if (!deadline.passed()) return {};
  std::uint32_t culprit = rank_;
  std::string cause;
  if (operation_ != Operation::broadcast && !has_result()) {
    const auto missing = list_ranks(size_, [this, &culprit](std::uint32_t r) {
      const bool is = in_subtree(r, rank_) && !has_contributed_[r];
      if (is && culprit == rank_) culprit = r;
      return is;
    });
    if (!missing.empty()) cause = missing + have(missing) + " not taken part";
  }
  if (cause.empty() && !has_result()) {
    culprit = tree_.parent ? tree_.parent->rank : rank_;
    cause = "the result has not come down from " + rank_name(culprit);
  }
  if (cause.empty()) {
    const auto slow =
        std::ranges::find_if(tree_.children, [](const Neighbour& c) { return c.channel.unsent(); });
    if (slow != tree_.children.end()) culprit = slow->rank;
    cause = rank_name(culprit) + " does not take the result";
  }
  return fail(broken(ErrorCode::deadline_exceeded, culprit, cause, culprit != rank_));
}

void Group::wait(Deadline deadline) {
  std::vector<pollfd> fds;
  each_peer([&](Neighbour& peer, bool is_parent) {
    const bool reads = is_parent ? !has_result() : needs_children();
    const auto events = static_cast<short>((reads ? POLLIN : 0) | (peer.channel.unsent() ? POLLOUT : 0));
    if (events != 0) fds.push_back({peer.channel.fd(), events, 0});
  });
  (void)::poll(fds.data(), fds.size(), deadline.poll_ms(cancel_ != nullptr ? 20 : 1000));
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> Bootstrap::join(const UniqueId& id, std::uint32_t rank, std::uint32_t size,
                                                   Deadline deadline, const CancelFlag* cancel) {
  CENOTE_ASSIGN(auto tree, join_tree(id, rank, size, deadline, cancel));
  return std::make_unique<Group>(rank, size, std::move(tree), cancel);
}

}  // namespace cenote
