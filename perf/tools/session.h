// Session: the two ends of a test from the first word to the last: who they are, the connection over a
// fabric, the memory, then one measurement after the other as the client says.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "perf/tools/options.h"

namespace cenote::perf {

/// The stage of errors before the other end has shown to be one at all: a stranger at the port.
inline constexpr const char* greeting_stage = "greet the other end";

/// How the two ends are joined, for people and for --json.
struct Joined {
  std::string peer;
  std::string transport;  ///< "shm"
  std::string reason;     ///< why this one
  std::string memory;     ///< of this end
  std::string peer_memory;
  std::size_t most_message = 0;  ///< bytes that one send() takes
};

struct Hooks {
  std::function<void(std::span<std::byte>)> before_check{};  ///< see Ends
  std::function<void(const Plan&, std::uint64_t done, Clock::time_point now)> progress{};
  std::function<void(std::span<std::byte>)> memory{};  ///< what the peer may reach, where the CPU may look
};

/// One thread. After an error of any call the session is over, and the peer has been told why.
class Session {
 public:
  /// `socket`: a connected stream to the other end; `peer`: its name for errors. `client` says which of the
  /// two this is; `memory`: what it needs on either side (the server takes the client's word, up to 8 GiB).
  /// Errors: those of Control and of Fabric, of buffers, invalid_argument (the other end runs another tool).
  static Result<std::unique_ptr<Session>> open(const Setup& setup, UniqueFd socket, std::string peer,
                                               bool client, std::uint64_t memory, const CancelFlag* cancel,
                                               Hooks hooks = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Joined& joined() const { return joined_; }
  /// The client: one measurement. What both ends found, added up.
  Result<Figures> measure(const Plan& plan);
  /// The server: the next measurement that the client asks for, with its plan; nullopt when it was the last.
  Result<std::optional<std::pair<Plan, Figures>>> serve();
  /// The client: nothing more.
  Result<void> finish();

 private:
  Session(const Setup& setup, UniqueFd socket, std::string peer, bool client, const CancelFlag* cancel,
          Hooks hooks);
  Result<void> greet(std::uint64_t& memory);
  Result<void> join(std::uint64_t memory);
  Result<void> stand();
  /// Whether transport and memory can do it. Errors: invalid_argument, not_supported.
  Result<void> check_plan(const Plan& plan) const;
  Result<Figures> run(const Plan& plan);
  Result<Figures> exchange(const Figures& mine);
  Error last_words(Error error);
  template <class T>
  Result<T> ended(Result<T> result);
  [[nodiscard]] std::function<void()> progressing();

  const Setup& setup_;
  const bool client_;
  const Hooks hooks_;
  Joined joined_;
  std::unique_ptr<MemorySource> source_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<Buffer> shared_, own_;
  transport::Link link_;
  Control control_;
  std::optional<Ends> ends_;
  Samples samples_;
};

}  // namespace cenote::perf
