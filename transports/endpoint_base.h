// EndpointBase: what the endpoints of every transport share: the first failure, finished operations,
// counters.
#pragma once

#include <memory>
#include <string>

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

/// Success, made without clearing the room for an error first, as `return {}` does (184 bytes): for what is
/// called every hundred nanoseconds.
inline Result<void> done() {
  Result<void> made;
  return made;
}

class EndpointBase : public Endpoint {
 public:
  explicit EndpointBase(std::string peer_name) : peer_name_(std::move(peer_name)) {}
  std::size_t poll(std::span<Completion> out) final {
    std::size_t count = 0;
    for (; count < out.size() && !done_.empty(); ++count) {
      const Done done = done_.pop();
      out[count].tag = done.tag;
      if (done.failed) [[unlikely]] {
        out[count].error = *failure_;
      } else {
        out[count].error.reset();
      }
    }
    return count;
  }
  [[nodiscard]] std::optional<Error> failure() const final {
    return failure_ ? std::optional<Error>(*failure_) : std::nullopt;
  }
  [[nodiscard]] EndpointStats stats() const final { return stats_; }
  [[nodiscard]] const std::string& peer_name() const final { return peer_name_; }

 protected:
  struct Done {
    std::uint64_t tag = 0;
    bool failed = false;
  };
  /// The failure that every later call returns. Only where failure_ is set.
  [[nodiscard]] tl::unexpected<Error> failed() const { return fail(*failure_); }
  [[nodiscard]] tl::unexpected<Error> queue_full(const char* stage) const {
    return fail(Error{ErrorCode::resource_exhausted, stage, "queue full"}
                    .with(peer_name_)
                    .fix("progress, poll, then try again"));
  }
  void finish(std::uint64_t tag) { done_.push({tag, false}); }
  void finish_failed(std::uint64_t tag) { done_.push({tag, true}); }

  std::unique_ptr<const Error> failure_;
  RingQueue<Done> done_;
  EndpointStats stats_;
  std::string peer_name_;
};

}  // namespace cenote::transport
