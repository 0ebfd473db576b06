// EndpointBase: what the endpoints of every transport share: the first failure, finished operations,
// counters.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include "transports/inbox.h"
#include "transports/ring_queue.h"
#include "transports/transport.h"

namespace cenote::transport {

/// Operations of one endpoint that are posted and not yet polled.
inline constexpr std::size_t queue_depth = 1024;

/// What a peer wrote, fit for a log: anything but printable ASCII becomes '?'.
inline std::string printable(std::span<const std::byte> text) {
  std::string out(as_text(text));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return out;
}

/// What a farewell is reported as.
inline Error farewell_error(std::span<const std::byte> reason) {
  return {ErrorCode::peer_failed, "talk to peer", "it closed: " + printable(reason)};
}

/// Success, made without clearing the room for an error first, as `return {}` and a variable do (184 bytes,
/// because the constructor is constexpr): for what is called every hundred nanoseconds.
inline Result<void> done() {
  union Room {
    Room() {}   // NOLINT(modernize-use-equals-default): of a union with such a member it would be deleted
    ~Room() {}  // NOLINT(modernize-use-equals-default)
    Result<void> value;
  } room;
  new (&room.value) Result<void>;  // success owns nothing that would have to be destroyed
  return std::move(room.value);
}

class EndpointBase : public Endpoint {
 public:
  explicit EndpointBase(std::string peer_name) : peer_name_(std::move(peer_name)) {}
  std::size_t poll(std::span<Completion> out) final {
    std::size_t count = 0;
    while (count < out.size() && !done_.empty()) {
      const std::span<Done> run = done_.run(out.size() - count);
      Completion* completion = &out[count];
      for (const Done& done : run) {
        completion->tag = done.tag;
        if (done.how != How::done || completion->error) [[unlikely]]
          tell(*completion, done.how);
        ++completion;
      }
      count += run.size();
      done_.drop(run.size());
    }
    return count;
  }
  [[nodiscard]] std::optional<Error> failure() const final {
    return failure_ ? std::optional<Error>(*failure_) : std::nullopt;
  }
  [[nodiscard]] EndpointStats stats() const final { return stats_; }
  [[nodiscard]] const std::string& peer_name() const final { return peer_name_; }

 protected:
  /// unknown: it may have been done or not, and the endpoint goes on.
  enum class How : std::uint8_t { done, failed, unknown };
  struct Done {
    std::uint64_t tag = 0;
    How how = How::done;
  };
  [[gnu::cold]] void tell(Completion& completion, How how) const {
    if (how == How::done) {
      completion.error.reset();
    } else {
      completion.error = how == How::failed ? *failure_ : unknown_outcome();
    }
  }
  /// The failure that every later call returns. Only where failure_ is set.
  [[nodiscard]] tl::unexpected<Error> failed() const { return fail(*failure_); }
  [[nodiscard]] tl::unexpected<Error> queue_full(const char* stage) const {
    return fail(Error{ErrorCode::resource_exhausted, stage, "queue full"}
                    .with(peer_name_)
                    .fix("progress, poll, then try again"));
  }
  /// receive() of whoever keeps arrived messages in an Inbox. After a failure what had come is still given,
  /// unless the peer broke the protocol.
  Result<std::optional<std::size_t>> receive_from(Inbox& inbox, std::span<std::byte> out) {
    const bool trusted = !failure_ || failure_->code == ErrorCode::peer_failed;
    if (!trusted || inbox.empty()) {
      if (failure_) [[unlikely]]
        return failed();
      return std::nullopt;
    }
    auto taken = inbox.take(out);
    if (taken) {
      ++stats_.received_messages;
      stats_.received_bytes += **taken;
    }
    return taken;
  }
  void finish(std::uint64_t tag) {
    Done& made = done_.add();
    made.tag = tag;
    made.how = How::done;
  }
  void finish_failed(std::uint64_t tag) { done_.push({tag, How::failed}); }
  void finish_unknown(std::uint64_t tag) { done_.push({tag, How::unknown}); }
  [[nodiscard]] Error unknown_outcome() const {
    return {ErrorCode::peer_failed,
            "atomic add",
            "outcome unknown: the way to the peer was lost before its answer came",
            {},
            peer_name_};
  }

  std::unique_ptr<const Error> failure_;
  RingQueue<Done> done_;
  EndpointStats stats_;
  std::string peer_name_;
};

}  // namespace cenote::transport
