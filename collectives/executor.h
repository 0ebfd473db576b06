// The executor: runs the plans of one rank over a fabric. Knows no algorithm; every collective goes through
// here.
//
// Operations progress inside test() and wait() only. Between two ranks everything is one stream in each
// direction, in the order in which the operations were started, so all ranks start them in the same order.
// Endpoints are made when an operation first needs them; plans are kept, and a repeated call allocates
// nothing.
//
// Threads: one at a time; abort() from any. Errors: the first failure breaks the executor; every operation
// that was not complete ends with it, peers are told, and later calls return it. An operation is complete,
// and stays so, when all that it needs has arrived here, however its peers ended afterwards.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/operation.h"
#include "collectives/peer_link.h"
#include "transports/fabric.h"

namespace cenote::collectives {

struct ExecutorOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::string algorithm = "auto";
  LinkOptions link{};
  bool check = true;  ///< every operation's first chunk on a link carries what the sender believes it is
  Clock::duration timeout = std::chrono::seconds(30);
  const CancelFlag* cancel = nullptr;
  Ledger* ledger = nullptr;  ///< what is in flight is told to it; outlives the executor
  /// How long a rank whose link broke without a word listens for one who knows why. A farewell can be lost
  /// with the connection that it was sent over; another neighbour's is not.
  Clock::duration grace = Clock::duration::zero();
};

class Executor {
 public:
  /// `addresses`: the ranks' Fabric::address(), by rank.
  Executor(std::unique_ptr<transport::Fabric> fabric, std::vector<Bytes> addresses, ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// The operation's sequence number. `call` has been checked.
  Result<std::uint64_t> start(const Call& call);
  Result<bool> test(std::uint64_t sequence);
  Result<void> wait(std::uint64_t sequence, Deadline deadline);
  void abort(std::string_view reason);

  // Straight into a peer's memory, and out of it (one_sided.cpp). Ranks and slots have been checked.

  struct OneSided {
    Outstanding::Kind kind = Outstanding::Kind::put;
    std::uint32_t rank = 0;  ///< not this one
    const transport::RemoteKey* key = nullptr;
    std::uint64_t offset = 0;
    std::span<std::byte> local{};  ///< a put only reads it
    std::uint32_t signal = transport::no_signal;
  };
  /// Its id, for test and wait. Errors: resource_exhausted (too many in flight; nothing is broken), and those
  /// of a broken executor.
  Result<std::uint64_t> start(const OneSided& call);
  /// Begins to connect this rank with every other: the transports that reach them, each once.
  Result<std::vector<transport::Transport*>> link_everybody(Deadline deadline);
  /// Returns when every other rank has greeted this one as often as this one has them: their links stand.
  Result<void> greet_everybody(Deadline deadline);
  [[nodiscard]] bool greeted() const { return greetings_ > 0; }
  /// Of a rank that has greeted.
  [[nodiscard]] std::string_view transport_to(std::uint32_t rank) const;
  /// Whether that rank's memory is reached without asking the rank first.
  [[nodiscard]] bool reaches_at_once(std::uint32_t rank) const;
  /// Counters of programs, from 0 below wire::user_signals; `rank` may be this one.
  [[nodiscard]] std::uint64_t signalled(std::uint32_t rank, std::uint32_t signal) const;
  void signal_self(std::uint32_t signal) { ++own_signals_[signal]; }
  /// Until the counter has come to `count`. A deadline that passes breaks nothing.
  Result<void> wait_signal(std::uint32_t rank, std::uint32_t signal, std::uint64_t count, Deadline deadline);
  /// The first failure, where there was one.
  [[nodiscard]] Result<void> well() const {
    if (broken_) return fail(*broken_);
    return {};
  }
  /// Moves everything forward; never blocks.
  Result<void> nudge();
  /// Ends everything in flight here, and tells the peers: `error` came from elsewhere, and names whose fault
  /// it is.
  void end(Error error) { (void)break_with(std::move(error)); }

  struct LinkStats {
    std::uint32_t rank;
    std::string transport, reason;
    std::uint64_t bytes_sent, bytes_received;
  };
  [[nodiscard]] std::vector<LinkStats> stats() const;

 private:
  struct Waiting {
    ActiveOperation* operation;
    std::uint32_t flow;
  };
  /// Flows that wait for their turn on a link's end, oldest operation first.
  struct Queue {
    std::vector<Waiting> entries;
    std::size_t head = 0;
    [[nodiscard]] bool empty() const { return head == entries.size(); }
    [[nodiscard]] const Waiting& front() const { return entries[head]; }
    void push(Waiting waiting) { entries.push_back(waiting); }
    void pop() {
      if (++head == entries.size()) {
        entries.clear();
        head = 0;
      }
    }
  };
  struct LinkState {
    std::unique_ptr<PeerLink> link;
    Queue sending, receiving;
    bool ended = false;  ///< something that is needed cannot go over it any more
  };
  struct Blocked {
    const LinkState* on = nullptr;
    const ActiveOperation* operation = nullptr;
    std::uint32_t instance = 0;
  };

  // executor.cpp: life of an operation
  Result<std::shared_ptr<const KeptPlan>> plan_for(const Call& call);
  void prepare(ActiveOperation& operation, const Call& call, std::shared_ptr<const KeptPlan> kept);
  Result<void> enqueue(ActiveOperation& operation);
  Result<LinkState*> link_to(std::uint32_t rank, Deadline deadline);
  [[nodiscard]] ActiveOperation* find(std::uint64_t sequence);
  Result<void> check_abort();
  [[nodiscard]] bool settled(const ActiveOperation& operation) const;
  Result<bool> advance(std::uint64_t sequence, bool& moved);
  /// Puts away what is complete; when everything is `breaking`, also what a peer has not taken all of.
  void retire(bool breaking = false);
  Result<bool> end_with(Error error, std::uint64_t sequence);
  void end_in_ledger(ActiveOperation& operation);

  // progress.cpp: moving chunks
  Result<bool> progress();
  Result<bool> open_gates();
  Result<bool> advance_link(LinkState& state);
  static bool take_sent(LinkState& state);
  [[nodiscard]] std::optional<Error> lost(const LinkState& state) const;
  Result<bool> advance_sending(LinkState& state);
  Result<bool> advance_receiving(LinkState& state);
  Result<bool> advance_local(ActiveOperation& operation);
  Result<bool> send_chunk(LinkState& state, const Waiting& front, std::uint32_t number,
                          std::uint64_t elements);
  Result<bool> receive_chunk(LinkState& state, const Waiting& front, std::uint32_t number,
                             std::uint64_t elements);
  Result<void> same_call(const LinkState& state, const ActiveOperation& operation,
                         const std::byte* message) const;
  Result<void> consume(ActiveOperation& operation, const Instance& instance, std::uint64_t at,
                       std::uint64_t elements, std::span<const std::byte> incoming);
  Result<void> local_chunk(ActiveOperation& operation, const Instance& instance, std::uint64_t at,
                           std::uint64_t elements);

  // one_sided.cpp
  [[nodiscard]] Error one_sided_error(const LinkState& state, const std::string& stage, Error cause) const;
  Result<bool> post(LinkState& state, const OneSided& call, std::uint64_t id);
  Result<bool> advance_one_sided(std::uint64_t id, bool& moved);
  Result<void> wait_one_sided(std::uint64_t id, Deadline deadline);
  Result<void> rest(Deadline deadline, std::string_view what);
  void note_in_ledger(Outstanding::Operation& operation, Clock::time_point now);
  void end_one_sided(Outstanding::Operation& operation);
  [[nodiscard]] std::string describe_one_sided(const Outstanding::Operation& operation) const;

  // stall.cpp: waiting, and ending badly
  Result<void> on_idle(ActiveOperation& operation, std::optional<Deadline> sleep_until);
  Result<void> compare_notes();
  void tell_stalled();
  void note_in_ledger();
  [[nodiscard]] Blocked blocked() const;
  [[nodiscard]] std::uint32_t culprit(const Blocked& blocked) const;
  [[nodiscard]] Clock::duration tick() const;
  [[nodiscard]] Error deadline_error(const ActiveOperation& operation, Clock::duration waited) const;
  [[nodiscard]] Error peer_error(const LinkState& state, const ActiveOperation& operation,
                                 std::string_view doing, Error cause) const;
  [[nodiscard]] Error peer_error(const LinkState& state, const std::string& stage, Error cause) const;
  /// Something on this rank, not on the wire.
  [[nodiscard]] Error local_error(const ActiveOperation& operation, Error cause) const;
  void listen_for_the_cause(Error& error);
  tl::unexpected<Error> break_with(Error error);

  std::unique_ptr<transport::Fabric> fabric_;
  std::vector<Bytes> addresses_;
  ExecutorOptions options_;
  Outstanding outstanding_;
  std::map<std::uint32_t, std::unique_ptr<LinkState>> links_;
  std::vector<std::shared_ptr<const KeptPlan>> plans_;    ///< most recently used first
  std::vector<std::unique_ptr<ActiveOperation>> active_;  ///< oldest first
  std::vector<std::unique_ptr<ActiveOperation>> idle_;    ///< finished ones, for reuse
  std::uint64_t next_sequence_ = 1;
  std::uint64_t greetings_ = 0;  ///< to each rank
  std::array<std::uint64_t, wire::user_signals> own_signals_{};
  std::optional<Error> broken_;
  Bytes gather_[2];  ///< for memory that the CPU cannot read

  bool moved_since_ = false;  ///< a chunk, since last_moved_ was written
  Clock::time_point last_moved_{};
  Clock::time_point last_told_{};
  std::uint32_t told_culprit_ = ~0U;

  std::atomic<bool> aborted_{false};
  std::mutex abort_mutex_;
  std::string abort_reason_;
};

}  // namespace cenote::collectives
