#include "runtime/bootstrap_join.h"

#include <poll.h>

#include <algorithm>
#include <list>

#include "runtime/bootstrap_wire.h"
#include "runtime/process.h"
#include "runtime/rank_name.h"
#include "runtime/tcp_socket.h"

namespace cenote::bootstrap {
namespace {

using namespace std::chrono_literals;

constexpr auto retry_after = 20ms;
constexpr auto cancel_check = 20ms;
constexpr std::size_t max_strangers = 64;
constexpr auto greeting_time = 10s;

struct Stranger {
  FrameChannel channel;
  Deadline leave_by;
};

/// The state of one join. Each step_ moves one side of it as far as it goes without waiting.
class Joiner {
 public:
  Joiner(const UniqueId& id, std::uint32_t rank, std::uint32_t size, Deadline deadline,
         const CancelFlag* cancel)
      : id_(id), rank_(rank), size_(size), deadline_(deadline), cancel_(cancel) {
    for (std::uint64_t child = std::uint64_t{rank} * fan_out + 1;
         child <= std::uint64_t{rank} * fan_out + fan_out; ++child)
      if (child < size) wanted_children_.push_back(static_cast<std::uint32_t>(child));
    const auto lead = std::min<Clock::duration>(250ms, deadline.left() / 4);
    ask_at_ = deadline.when() - lead;
    ask_every_ = std::max<Clock::duration>(lead / 4, 1ms);
  }

  Result<Tree> run() {
    CENOTE_TRY(reach_root());
    for (;;) {
      CENOTE_TRY(step_root());
      CENOTE_TRY(step_parent());
      step_strangers();
      CENOTE_TRY(step_children());
      if (stands_) break;
      CENOTE_TRY(pause());
    }
    CENOTE_TRY(say_go());
    return std::move(tree_);
  }

 private:
  enum class Parent : std::uint8_t { none, asked, connecting, connected };
  struct Child {
    Neighbour link;
    bool ready = false;
  };

  [[nodiscard]] std::string stage() const {
    return "join group as rank " + std::to_string(rank_) + " of " + std::to_string(size_);
  }
  [[nodiscard]] std::string root_name() const { return "root " + SocketAddress{id_.host, id_.port}.text(); }
  [[nodiscard]] tl::unexpected<Error> failed(ErrorCode code, std::string cause, std::string peer = {}) const {
    return fail(Error{code, stage(), std::move(cause)}.with(std::move(peer)));
  }

  Result<void> reach_root();
  Result<void> step_root();
  Result<void> take_root_frame(std::span<const std::byte> frame);
  Result<void> step_parent();
  Result<void> connect_parent(const SocketAddress& where);
  void ask_parent_again();
  void step_strangers();
  void greet(Stranger& stranger, std::span<const std::byte> frame);
  Result<void> step_children();
  Result<void> say_go();
  Result<void> pause();
  Result<void> out_of_time();
  void collect(std::vector<pollfd>& fds) const;

  const UniqueId& id_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  const Deadline deadline_;
  const CancelFlag* cancel_;
  std::vector<std::uint32_t> wanted_children_;

  std::optional<FrameChannel> root_;
  UniqueFd listener_;
  Parent parent_state_ = Parent::none;
  UniqueFd connecting_;
  SocketAddress parent_at_;
  std::optional<Clock::time_point> retry_at_;
  std::list<Stranger> strangers_;
  std::list<Child> children_;
  Tree tree_;
  bool said_ready_ = false;
  bool stands_ = false;       ///< everybody is connected
  Clock::time_point ask_at_;  ///< when to ask the root who is missing, shortly before the deadline
  Clock::duration ask_every_;
  std::string missing_;
};

Result<void> Joiner::reach_root() {
  const SocketAddress at{id_.host, id_.port};
  auto no_root = [this](Error error) {
    error.stage = stage();
    error.cause = "cannot reach " + root_name() + ": " + error.cause;
    return fail(std::move(error).fix(
        "is the process that made the unique id still running, and its address reachable?"));
  };
  auto fd = start_connecting(at);
  if (!fd) return no_root(std::move(fd).error());
  for (bool connected = false; !connected;) {
    pollfd waiting{fd->get(), POLLOUT, 0};
    const int slice = cancel_ != nullptr ? 20 : 1000;
    if (::poll(&waiting, 1, deadline_.poll_ms(slice)) > 0) {
      if (auto outcome = connect_outcome(fd->get(), at); !outcome) return no_root(std::move(outcome).error());
      connected = true;
    } else if (cancel_ != nullptr && cancel_->raised()) {
      return failed(ErrorCode::cancelled, "cancelled while connecting", root_name());
    } else if (deadline_.passed()) {
      return failed(ErrorCode::deadline_exceeded, "no answer from " + root_name());
    }
  }
  CENOTE_ASSIGN(const auto mine, local_address(fd->get()));
  CENOTE_ASSIGN(listener_, listen_on({mine.host, 0}, 64));
  CENOTE_ASSIGN(const auto listening, local_address(listener_.get()));
  root_.emplace(std::move(*fd), max_reply);
  Writer hello;
  hello.put(Kind::hello).put(magic).raw(std::as_bytes(std::span(id_.secret)));
  root_->queue(hello.put(rank_).put(size_).put(listening.port).bytes());
  if (rank_ != 0) parent_state_ = Parent::asked;
  return {};
}

Result<void> Joiner::step_root() {
  if (!root_) return {};
  root_->flush();
  root_->fill();
  for (;;) {
    auto frame = root_->next();
    if (!frame) return failed(ErrorCode::protocol_error, frame.error().cause, root_name());
    if (!*frame) break;
    CENOTE_TRY(take_root_frame(**frame));
  }
  if (root_->closed()) {
    // Once the tree is connected the root has nothing more to give.
    if (!said_ready_) return failed(ErrorCode::peer_failed, root_->close_cause(), root_name());
    root_.reset();
  }
  return {};
}

Result<void> Joiner::take_root_frame(std::span<const std::byte> frame) {
  Reader reader(frame);
  switch (reader.get<Kind>()) {
    case Kind::refused: {
      const auto code = reader.get<ErrorCode>();
      const auto cause = reader.text();
      if (reader.bad() || code > ErrorCode::internal) break;
      return failed(code, "refused: " + cause, root_name());
    }
    case Kind::parent_at: {
      SocketAddress where{reader.text(), 0};
      where.port = reader.get<std::uint16_t>();
      if (reader.bad()) break;
      if (parent_state_ != Parent::asked || retry_at_) return {};  // an answer that is no longer needed
      return connect_parent(where);
    }
    case Kind::missing: {
      missing_ = reader.text();
      if (reader.bad()) break;
      if (missing_.empty()) missing_ = "all";
      return {};
    }
    case Kind::lost: {
      const auto rank = reader.get<std::uint32_t>();
      const auto cause = reader.text();
      if (!reader.finished() || rank >= size_) break;
      return failed(ErrorCode::peer_failed, "it had registered, and left before the group stood: " + cause,
                    rank_name(rank));
    }
    default:
      break;
  }
  return failed(ErrorCode::protocol_error, "it sent a frame that makes no sense", root_name());
}

void Joiner::ask_parent_again() {
  connecting_.reset();
  tree_.parent.reset();
  parent_state_ = Parent::asked;
  said_ready_ = false;
  retry_at_ = Clock::now() + retry_after;
}

Result<void> Joiner::connect_parent(const SocketAddress& where) {
  parent_at_ = where;
  auto fd = start_connecting(where);
  if (!fd) {
    ask_parent_again();
    return {};
  }
  connecting_ = std::move(*fd);
  parent_state_ = Parent::connecting;
  return {};
}

Result<void> Joiner::step_parent() {
  if (retry_at_ && Clock::now() >= *retry_at_) {
    if (!root_)
      return failed(ErrorCode::peer_failed, "the connection ended, and " + root_name() + " is gone",
                    rank_name(parent_of(rank_)));
    retry_at_.reset();
    root_->queue(Writer().put(Kind::ask_parent).bytes());
    root_->flush();
  }
  if (parent_state_ == Parent::connecting) {
    pollfd waiting{connecting_.get(), POLLOUT, 0};
    if (::poll(&waiting, 1, 0) <= 0) return {};
    if (!connect_outcome(connecting_.get(), parent_at_)) {
      ask_parent_again();  // it died, or came back elsewhere
      return {};
    }
    tree_.parent =
        Neighbour{parent_of(rank_), FrameChannel(std::move(connecting_), max_broadcast + max_greeting)};
    Writer hello;
    hello.put(Kind::child_hello).put(magic).raw(std::as_bytes(std::span(id_.secret))).put(rank_).put(size_);
    tree_.parent->channel.queue(hello.bytes());
    parent_state_ = Parent::connected;
  }
  if (parent_state_ != Parent::connected) return {};
  auto& channel = tree_.parent->channel;
  const auto name = rank_name(tree_.parent->rank);
  channel.flush();
  channel.fill();
  auto frame = channel.next();
  if (!frame) return failed(ErrorCode::protocol_error, frame.error().cause, name);
  if (*frame) {
    Reader reader(**frame);
    if (reader.get<Kind>() != Kind::go || !reader.finished() || !said_ready_)
      return failed(ErrorCode::protocol_error, "it sent a frame that makes no sense", name);
    stands_ = true;
  } else if (channel.closed()) {
    ask_parent_again();
  }
  return {};
}

void Joiner::step_strangers() {
  for (;;) {
    auto fd = accept_from(listener_.get());
    if (!fd || !*fd) break;
    if (strangers_.size() >= max_strangers) strangers_.pop_front();
    strangers_.push_back({FrameChannel(std::move(*fd), max_greeting), Deadline::in(greeting_time)});
  }
  for (auto at = strangers_.begin(); at != strangers_.end();) {
    at->channel.fill();
    auto frame = at->channel.next();
    if (frame && *frame) greet(*at, **frame);
    const bool waits = frame && !*frame && !at->channel.closed() && !at->leave_by.passed();
    at = waits ? std::next(at) : strangers_.erase(at);
  }
}

/// A stranger that shows the secret and is one of ours becomes a child; any other is dropped by the caller.
void Joiner::greet(Stranger& stranger, std::span<const std::byte> frame) {
  Reader reader(frame);
  const auto kind = reader.get<Kind>();
  const auto their_magic = reader.get<std::uint32_t>();
  const auto secret = reader.raw(id_.secret.size());
  const auto child = reader.get<std::uint32_t>();
  const auto size = reader.get<std::uint32_t>();
  if (!reader.finished() || kind != Kind::child_hello || their_magic != magic) return;
  const std::span<const std::uint8_t> theirs(reinterpret_cast<const std::uint8_t*>(secret.data()),
                                             secret.size());
  if (!equal_in_constant_time(theirs, id_.secret) || size != size_) return;
  if (std::ranges::find(wanted_children_, child) == wanted_children_.end()) return;
  if (std::ranges::any_of(children_, [child](const Child& c) { return c.link.rank == child; })) return;
  stranger.channel.set_max_frame(max_broadcast + max_greeting);
  children_.push_back({{child, std::move(stranger.channel)}});
  // The moved-from channel reads as not closed, so the caller drops it because a frame was there.
}

Result<void> Joiner::step_children() {
  for (auto at = children_.begin(); at != children_.end();) {
    auto& channel = at->link.channel;
    if (!at->ready) {
      channel.fill();
      auto frame = channel.next();
      if (frame && *frame) {
        Reader reader(**frame);
        if (reader.get<Kind>() != Kind::ready || !reader.finished())
          return failed(ErrorCode::protocol_error, "it sent a frame that makes no sense",
                        rank_name(at->link.rank));
        at->ready = true;
      } else if (!frame) {
        return failed(ErrorCode::protocol_error, frame.error().cause, rank_name(at->link.rank));
      }
    } else {
      channel.fill();  // only to see whether it is still there
    }
    if (channel.closed() && !stands_) {
      // It may come back. Until then this subtree is not ready: the parent learns that from the end of our
      // link.
      if (said_ready_) ask_parent_again();
      at = children_.erase(at);
    } else {
      ++at;
    }
  }
  const bool complete = children_.size() == wanted_children_.size() &&
                        std::ranges::all_of(children_, [](const Child& c) { return c.ready; });
  if (!complete || said_ready_) return {};
  if (rank_ == 0) {
    said_ready_ = stands_ = true;
  } else if (parent_state_ == Parent::connected) {
    said_ready_ = true;
    tree_.parent->channel.queue(Writer().put(Kind::ready).bytes());
    tree_.parent->channel.flush();
  }
  return {};
}

Result<void> Joiner::say_go() {
  const auto go = make_frame(Writer().put(Kind::go).bytes());
  children_.sort([](const Child& a, const Child& b) { return a.link.rank < b.link.rank; });
  for (auto& child : children_) {
    child.link.channel.queue(go);
    child.link.channel.flush();  // five bytes into an empty socket buffer
    tree_.children.push_back(std::move(child.link));
  }
  if (root_) {
    root_->queue(Writer().put(Kind::done).bytes());
    root_->flush();
  }
  return {};
}

void Joiner::collect(std::vector<pollfd>& fds) const {
  auto add = [&fds](const FrameChannel& channel) {
    fds.push_back({channel.fd(), static_cast<short>(POLLIN | (channel.unsent() ? POLLOUT : 0)), 0});
  };
  fds.push_back({listener_.get(), POLLIN, 0});
  if (root_) add(*root_);
  if (tree_.parent) add(tree_.parent->channel);
  if (connecting_) fds.push_back({connecting_.get(), POLLOUT, 0});
  for (const auto& stranger : strangers_) add(stranger.channel);
  for (const auto& child : children_) add(child.link.channel);
}

Result<void> Joiner::pause() {
  if (cancel_ != nullptr && cancel_->raised())
    return failed(ErrorCode::cancelled, "cancelled while others were missing");
  if (deadline_.passed()) return out_of_time();
  const auto now = Clock::now();
  if (now >= ask_at_ && root_) {
    ask_at_ = now + ask_every_;
    root_->queue(Writer().put(Kind::ask_missing).bytes());
    root_->flush();
  }
  auto until = std::min(deadline_.when(), ask_at_);
  if (retry_at_) until = std::min(until, *retry_at_);
  if (cancel_ != nullptr) until = std::min(until, now + Clock::duration(cancel_check));
  std::vector<pollfd> fds;
  collect(fds);
  (void)::poll(fds.data(), fds.size(),
               Deadline::at(until).poll_ms(1000));  // a failure means: look at everybody
  return {};
}

Result<void> Joiner::out_of_time() {
  std::string cause;
  if (missing_.empty()) {
    cause = "no answer from " + root_name();
  } else if (missing_ != "all") {
    cause = missing_ + have(missing_) + " not arrived";
  } else if (said_ready_) {
    cause = "all ranks have arrived, but rank " + std::to_string(parent_of(rank_)) + " has not let them go";
  } else {
    const auto late = list_ranks(size_, [this](std::uint32_t r) {
      const auto is = [r](const Child& c) { return c.link.rank == r && c.ready; };
      return std::ranges::find(wanted_children_, r) != wanted_children_.end() &&
             std::ranges::none_of(children_, is);
    });
    cause = "all ranks have registered, but ";
    cause += late.empty() ? rank_name(parent_of(rank_)) + " cannot be connected to"
                          : late + have(late) + " not connected";
  }
  return fail(Error{ErrorCode::deadline_exceeded, stage(), cause}.fix(
      "start them in time, or give the group more time to form"));
}

}  // namespace

Result<Tree> join_tree(const UniqueId& id, std::uint32_t rank, std::uint32_t size, Deadline deadline,
                       const CancelFlag* cancel) {
  if (size == 0 || size > max_size || rank >= size)
    return fail(ErrorCode::invalid_argument, "join group",
                rank_name(rank) + " of " + std::to_string(size) + " does not exist");
  return Joiner(id, rank, size, deadline, cancel).run();
}

}  // namespace cenote::bootstrap
