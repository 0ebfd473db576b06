// The transport contract. A transport moves bytes between two processes, one-sided at heart. Makers: shm/
// (same host), tcp/ (anywhere), and what wraps or joins them. One conformance suite tests them all.
//
//   auto t = make_shm_transport(options);           one per thread that communicates
//   exchange(t->address());                         through the bootstrap, or any other channel
//   auto e = t->connect(peer_address, "rank 3");    both sides connect to each other
//   auto r = t->allocate(1 << 20);                  memory that peers can reach
//   send(r->key()); e->put(...); t->progress(); e->poll(...);
//
// Threads: a transport and everything made from it belong to one thread at a time; the owner may change with
// any synchronisation. Only `Transport::interrupt` may be called from other threads. Nothing blocks but
// `wait`.
//
// Memory ordering: bytes of a put are visible in the target's memory before its signal is, before any later
// signal and any later message of `send` on the same endpoint, and nothing else is promised: neither that a
// message is received before a later signal counts, or after an earlier one, nor in which order signals of
// different counters do. Who looks only at its memory, and calls neither signal() nor receive() nor
// progress(), may never see what a peer put there. A put, a get or an atomic of
// bytes that an earlier put of the same endpoint writes comes after that put; a get may still be answered
// from what a later put has written.
//
// Failure: the first fault makes an endpoint `failed`; every operation in flight on it completes with an
// error that names the peer, the stage and the cause, and every later call returns it. A process that dies is
// noticed by its peers within 1 s (usually at once) as long as they progress or wait. Other endpoints are not
// touched. No destructor waits for a peer.
//
// A peer is not trusted: lengths, offsets and keys that arrive are checked against the regions that this side
// made; what does not fit fails the endpoint and touches no memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/bytes.h"
#include "runtime/deadline.h"
#include "runtime/memory.h"
#include "runtime/result.h"

namespace cenote::transport {

/// What a peer needs to reach a region: plain bytes, sent by any channel, at most 64 of them.
struct RemoteKey {
  std::array<std::byte, 64> bytes{};
  std::uint8_t size = 0;
};

/// Memory of this side that peers may reach, from construction to destruction. Destroying it makes its key
/// worthless at once: a later put of a peer fails its endpoint there and touches nothing here.
class Region {
 public:
  virtual ~Region() = default;
  /// Of GPU memory: its addresses there, for puts and gets of this transport; nobody else may look behind
  /// them.
  [[nodiscard]] virtual std::span<std::byte> bytes() const = 0;
  [[nodiscard]] virtual const RemoteKey& key() const = 0;
};

/// Signal counters: each endpoint has `signal_slots` of them on either side. A put may add to one of the
/// peer's.
inline constexpr std::uint32_t signal_slots = 64;
inline constexpr std::uint32_t no_signal = ~0U;

struct RemoteSlice {
  const RemoteKey* key;  ///< read before the call returns
  std::uint64_t offset;  ///< bytes into the peer's region
};

/// One finished operation. `tag` is the caller's own.
struct Completion {
  std::uint64_t tag;
  std::optional<Error> error;  ///< nullopt = done
};

struct EndpointStats {
  std::uint64_t bytes_put = 0, bytes_got = 0, bytes_sent = 0;  ///< payload that this side moved
  std::uint64_t puts = 0, gets = 0, sends = 0, atomics = 0, received_messages = 0, received_bytes = 0;
  /// How often it gave up what it holds of the card, being idle, for others; and had it again.
  std::uint64_t parked = 0, revived = 0;
};

/// One connected pair. Made by Transport::connect, usable at once: what is posted before the connection
/// stands is kept and flows when it does.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// Writes `src` to the peer's memory, then adds 1 to its signal counter `signal` (no_signal: none). `src`
  /// is unchanged until the completion. `src` may be empty: a pure signal, or without one a mark, complete
  /// when what was posted and sent before no longer waits for the connection. The completion means: `src` may
  /// be reused, and the write has left this side as drained() means it; completions come in no order. Returns
  /// resource_exhausted when the endpoint's queue is full: progress, poll, try again (nothing was posted).
  virtual Result<void> put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                           std::uint64_t tag) = 0;
  /// Reads the peer's memory into `dst`; complete = the bytes are there.
  virtual Result<void> get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) = 0;
  /// Adds to an aligned 8-byte word of the peer's memory; the old value is in *old (may be null) at
  /// completion.
  virtual Result<void> atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                                  std::uint64_t tag) = 0;
  /// Sends a small message (at most Transport::limits().max_message bytes), copied before it returns.
  /// Messages of an endpoint arrive once and in order. resource_exhausted: the peer has not taken enough of
  /// the earlier ones.
  virtual Result<void> send(std::span<const std::byte> message) = 0;
  /// The oldest message not yet taken, copied into `out`: its size, or nullopt when there is none. A message
  /// longer than `out` is an invalid_argument error and stays.
  virtual Result<std::optional<std::size_t>> receive(std::span<std::byte> out) = 0;

  /// How often the peer has added to counter `slot` of this side. Acquire: what was put before is visible.
  [[nodiscard]] virtual std::uint64_t signal(std::uint32_t slot) const = 0;
  /// Takes up to out.size() finished operations. Puts, gets and atomics each complete exactly once.
  virtual std::size_t poll(std::span<Completion> out) = 0;
  /// Whether everything posted here has left this side: the kernel or the peer's memory has it. Until then
  /// the peer may wait for a progress() of this side, however complete the operations are: who wants to stop
  /// progressing (to compute, to sleep elsewhere) waits for it first. True of a failed endpoint.
  [[nodiscard]] virtual bool drained() const = 0;
  /// nullopt while the endpoint is well.
  [[nodiscard]] virtual std::optional<Error> failure() const = 0;
  /// Tells the peer, without waiting, that this side is gone: its endpoint fails with peer_failed and
  /// `reason`, like when the endpoint or its transport is destroyed. What is not complete yet ends with an
  /// error here. What has left (see drained()) still arrives before the peer's endpoint fails, though
  /// everything here is destroyed at once. There is one exception, over a network: where the peer itself is
  /// still sending to this side and the transport does not live on, the operating system may drop what has
  /// not reached the peer's host. Who must know that the peer has something waits for its answer.
  virtual void close(std::string_view reason) = 0;
  [[nodiscard]] virtual EndpointStats stats() const = 0;
  [[nodiscard]] virtual std::string_view transport_name() const = 0;
  [[nodiscard]] virtual const std::string& peer_name() const = 0;
};

struct Limits {
  std::size_t max_message = 0;        ///< bytes of one send()
  bool registers_any_memory = false;  ///< register_memory takes ordinary memory; otherwise use allocate()
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  ///< "shm", "tcp"
  [[nodiscard]] virtual Limits limits() const = 0;
  /// What a peer hands to connect(); at most 256 bytes. Carries a random secret of 128 bits: who does not
  /// know it cannot connect.
  [[nodiscard]] virtual const Bytes& address() const = 0;
  /// Whether a peer with that address can be reached by this transport, and if not, why (same host?
  /// namespace?).
  [[nodiscard]] virtual Result<void> reachable(std::span<const std::byte> peer_address) const = 0;
  /// Both sides call it with the other's address; either may be first. `channel` tells several endpoints
  /// between the same two transports apart (both sides name the same number). `deadline` bounds the setting
  /// up.
  virtual Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> peer_address,
                                                    std::string peer_name, std::uint32_t channel,
                                                    Deadline deadline) = 0;
  /// Memory that peers can reach, zeroed, page aligned.
  virtual Result<std::unique_ptr<Region>> allocate(std::size_t bytes) = 0;
  /// Makes existing memory reachable. It must outlive the region, and the region what is under way from it or
  /// to it. GPU memory is reached like other memory, where the transport can (verbs): what the GPU is to send
  /// has been written before the put, and what arrived can be read by the GPU when it is told. not_supported
  /// where limits() say so, or with the reason why GPU memory is out of reach.
  virtual Result<std::unique_ptr<Region>> register_memory(const MemoryDescription& memory) = 0;
  /// Moves everything forward; never blocks. True when anything happened.
  virtual bool progress() = 0;

  /// Descriptors to poll(2) for reading while asleep, and the handshake that makes sleeping safe: after arm()
  /// returned true nothing is pending, and anything that happens from then on makes a descriptor readable.
  /// False = something is already there: progress instead. disarm() after waking.
  [[nodiscard]] virtual std::span<const int> wait_fds() const = 0;
  virtual bool arm() = 0;
  virtual void disarm() = 0;
  /// Makes a thread asleep in `wait` (on any of the descriptors) return. The only call for other threads.
  virtual void interrupt() = 0;
};

/// Spins briefly, then sleeps in the kernel, on all `transports` at once, until something happened on one of
/// them, `deadline` passed (deadline_exceeded) or `cancel` was raised (cancelled; may be null). Progresses
/// them before it returns. `what` names the wait in errors. `spin`: how long to poll before sleeping.
Result<void> wait(std::span<Transport* const> transports, Deadline deadline, const CancelFlag* cancel,
                  std::string_view what, Clock::duration spin = std::chrono::microseconds(20));

}  // namespace cenote::transport
