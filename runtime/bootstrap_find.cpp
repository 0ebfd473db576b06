#include "runtime/bootstrap_find.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/bootstrap_wire.h"
#include "runtime/frame_channel.h"
#include "runtime/tcp_socket.h"

namespace cenote::bootstrap {
namespace {

using namespace std::chrono_literals;

constexpr Clock::duration first_pause = 20ms;
constexpr Clock::duration longest_pause = 500ms;
constexpr Clock::duration patience = 2s;  // with who takes the connection and does not answer

/// One port, and the try that is under way there. step() moves it as far as it goes without waiting.
class Candidate {
 public:
  Candidate(SocketAddress at, const std::array<std::uint8_t, 16>& secret)
      : at_(std::move(at)),
        question_(Writer().put(Kind::search).put(magic).raw(std::as_bytes(std::span(secret))).take()) {}

  /// Whether it is the root.
  bool step() {
    if (!connecting_ && !channel_) {
      if (Clock::now() < next_try_) return false;
      begin();
    }
    if (connecting_) finish_connecting();
    return channel_ && answered();
  }
  [[nodiscard]] std::optional<pollfd> waits_for() const {
    if (connecting_) return pollfd{connecting_.get(), POLLOUT, 0};
    if (channel_) return pollfd{channel_->fd(), POLLIN, 0};
    return std::nullopt;
  }
  [[nodiscard]] Clock::time_point due() const { return connecting_ || channel_ ? give_up_ : next_try_; }
  [[nodiscard]] const std::string& met() const { return met_; }
  [[nodiscard]] std::uint16_t port() const { return at_.port; }

 private:
  void begin() {
    give_up_ = Clock::now() + patience;
    auto fd = start_connecting(at_);
    if (!fd) return end(fd.error().cause);
    connecting_ = std::move(*fd);
  }
  void finish_connecting() {
    pollfd waiting{connecting_.get(), POLLOUT, 0};
    if (::poll(&waiting, 1, 0) <= 0) {
      if (Clock::now() >= give_up_) end("no answer");
      return;
    }
    if (const auto outcome = connect_outcome(connecting_.get(), at_); !outcome)
      return end(outcome.error().cause);
    channel_.emplace(std::move(connecting_), max_reply);
    channel_->queue(question_);
    channel_->flush();
  }
  bool answered() {
    channel_->fill();
    auto frame = channel_->next();
    if (!frame) {
      end("not a process of Cenote");
    } else if (*frame) {
      return understood(**frame);
    } else if (channel_->closed()) {
      end("not a process of Cenote: " + channel_->close_cause());
    } else if (Clock::now() >= give_up_) {
      end("no answer");
    }
    return false;
  }
  bool understood(std::span<const std::byte> frame) {
    Reader reader(frame);
    const auto kind = reader.get<Kind>();
    if (kind == Kind::here && reader.finished()) return true;
    const auto code = reader.get<ErrorCode>();
    if (kind != Kind::refused || reader.bad()) {
      end("not a process of Cenote");
    } else if (code == ErrorCode::permission_denied) {
      end("a group of another job");
    } else {
      end(reader.text());
    }
    return false;
  }
  void end(std::string met) {
    met_ = std::move(met);
    connecting_.reset();
    channel_.reset();
    pause_ = std::min(pause_ * 2, longest_pause);
    next_try_ = Clock::now() + pause_;
  }

  SocketAddress at_;
  Bytes question_;
  UniqueFd connecting_;
  std::optional<FrameChannel> channel_;
  Clock::time_point give_up_{};
  Clock::time_point next_try_{};
  Clock::duration pause_ = first_pause / 2;
  std::string met_ = "not asked yet";
};

/// "61000: connection refused", those that met the same together.
std::string all_met(const std::vector<Candidate>& candidates) {
  std::string out;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(candidates[i].port());
    const bool last = i + 1 == candidates.size() || candidates[i + 1].met() != candidates[i].met();
    if (last) out += " (" + candidates[i].met() + ")";
  }
  return out;
}

void wait_for_any(const std::vector<Candidate>& candidates, Deadline deadline, bool cancellable) {
  std::vector<pollfd> fds;
  auto until = deadline.when();
  for (const auto& candidate : candidates) {
    if (const auto fd = candidate.waits_for()) fds.push_back(*fd);
    until = std::min(until, candidate.due());
  }
  (void)::poll(fds.data(), fds.size(), Deadline::at(until).poll_ms(cancellable ? 20 : 1000));
}

}  // namespace

Result<UniqueId> find_root(const std::string& host, std::span<const std::uint16_t> ports,
                           const std::array<std::uint8_t, 16>& secret, Deadline deadline,
                           const CancelFlag* cancel) {
  const auto stage = "find rank 0 at " + host;
  std::vector<Candidate> candidates;
  for (const auto port : ports) candidates.emplace_back(SocketAddress{host, port}, secret);
  for (;;) {
    for (auto& candidate : candidates)
      if (candidate.step()) return UniqueId{host, candidate.port(), secret};
    if (cancel != nullptr && cancel->raised()) return fail(ErrorCode::cancelled, stage, "cancelled");
    if (deadline.passed()) {
      return fail(Error{ErrorCode::deadline_exceeded, stage,
                        "rank 0 has not arrived: it serves this group at no port of " + all_met(candidates)}
                      .fix("start it in time, let these ports through, or set launcher_port to one that is"));
    }
    wait_for_any(candidates, deadline, cancel != nullptr);
  }
}

}  // namespace cenote::bootstrap
