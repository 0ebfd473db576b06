// Communicator: one rank's membership in a group whose collectives run over the fabric. What a program holds;
// the C ABI, the pool's workers and the tests all sit on it.
//
// Operations are non-blocking: they return a Request that test() or wait() finishes. Several may be in
// flight; all ranks issue them in the same order. The calling thread progresses its own operations inside
// test and wait. A communicator belongs to one thread at a time; only abort() may be called from others.
//
// Failure: when a peer fails or a deadline passes, the operation ends with an error that names rank,
// operation, sequence and stage; the communicator is then broken and every later call returns that first
// error. The other ranks are told, so that they end too. No wrong result is ever reported as right.
//
// What is in flight stands in a ledger (runtime/ledger.h), which `cenote who-is-stuck` reads from outside.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/gate.h"
#include "runtime/bootstrap.h"
#include "runtime/deadline.h"
#include "runtime/memory.h"
#include "runtime/result.h"
#include "runtime/types.h"
#include "transports/fabric.h"

namespace cenote::collectives {

struct CommunicatorOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  UniqueId id{};
  transport::FabricOptions fabric{};
  std::string algorithm = "auto";  ///< or an algorithm's name, for tests and studies
  Clock::duration init_timeout = std::chrono::seconds(30);
  Clock::duration operation_timeout = std::chrono::seconds(30);
  bool check = true;  ///< ranks compare what they call, on each operation's first chunk
  std::size_t chunk_bytes = std::size_t{128} * 1024;  ///< unit of pipelining; a multiple of 64
  std::uint32_t chunks_ahead = 8;                     ///< chunks that may be on their way to one peer
  const CancelFlag* cancel = nullptr;                 ///< ends init and every wait
};

/// An operation in flight. Movable. Dropping an unfinished one leaves it in flight; its buffers stay in use
/// until the communicator is destroyed.
struct Request {
  std::uint64_t sequence = 0;  ///< 0 = nothing in flight
};

class Window;
struct WindowOptions;

struct PeerStats {
  std::uint32_t rank;
  std::string transport;     ///< "shm", "tcp", "" while nothing was exchanged
  std::string reason;        ///< why that transport
  std::uint64_t bytes_sent;  ///< payload put to that peer
  std::uint64_t bytes_received;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Collective over the ranks of options.id: they agree on everything but fabric, timeouts and cancel, or
  /// all fail with an error that names a rank and the option (`id` is not looked at for a size of 1). Errors:
  /// deadline_exceeded (names the missing ranks), invalid_argument.
  static Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options);

  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;

  // `gate`: the buffers are not touched before it opens. Empty: at once.

  /// recv[i] = op over all ranks of send[i]. `send` and `recv` are `count` elements, identical or disjoint.
  virtual Result<Request> allreduce(const MemoryDescription& send, const MemoryDescription& recv,
                                    std::size_t count, DataType type, ReduceOp op, Gate gate = {}) = 0;
  /// recv = send of rank 0, send of rank 1, ...; `count` elements from each; recv holds count * size().
  virtual Result<Request> allgather(const MemoryDescription& send, const MemoryDescription& recv,
                                    std::size_t count, DataType type, Gate gate = {}) = 0;
  virtual Result<Request> broadcast(const MemoryDescription& buffer, std::size_t count, DataType type,
                                    std::uint32_t root, Gate gate = {}) = 0;
  virtual Result<Request> barrier() = 0;

  // One-sided: window.h. Signals count what each rank has told each other one, whatever the window. Errors of
  // all: invalid_argument before the first window is made, which connects the ranks.

  /// Collective; ends before this does.
  virtual Result<std::unique_ptr<Window>> create_window(const WindowOptions& options) = 0;
  /// Adds 1 to counter `signal` of `rank`, after what this rank has put there.
  virtual Result<Request> signal(std::uint32_t rank, std::uint32_t signal) = 0;
  /// How often `rank` has added to counter `signal` of this one: what it put before that is there.
  /// Progresses.
  virtual Result<std::uint64_t> signal_count(std::uint32_t rank, std::uint32_t signal) = 0;
  /// The same without progress, also when the communicator is broken; 0 where there is no such counter.
  [[nodiscard]] virtual std::uint64_t signals_arrived(std::uint32_t rank, std::uint32_t signal) const = 0;
  /// Until that is `count` or more. `deadline` (at most the operation timeout) breaks nothing.
  virtual Result<void> wait_signal(std::uint32_t rank, std::uint32_t signal, std::uint64_t count,
                                   Deadline deadline) = 0;
  /// Moves everything forward, for ranks that do nothing but serve the others. Never blocks.
  virtual Result<void> progress() = 0;

  /// True when done (the request is then empty); false: call again. Progresses, never blocks (but for 50 ms,
  /// once, when a peer was lost without a word: another may know why).
  /// An empty request is done, unless the communicator is broken: then its first failure is returned, so that
  /// a wait that failed does not succeed when it is repeated.
  virtual Result<bool> test(Request& request) = 0;
  /// `deadline`, when it passes, breaks the communicator as the operation's own does.
  virtual Result<void> wait(Request& request, Deadline deadline) = 0;

  /// Ends everything in flight here with `reason`, and tells the peers. Never waits. Any thread.
  virtual void abort(std::string_view reason) = 0;
  [[nodiscard]] virtual std::vector<PeerStats> stats() const = 0;
};

}  // namespace cenote::collectives
