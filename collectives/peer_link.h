// PeerLink: the two streams of chunks between this rank and one peer, over one endpoint.
//
// Each direction is a stream: chunks are taken in the order they were sent, and both sides know from their
// plans what the next one is, so a chunk carries no description. Small chunks travel as messages; large ones
// are put into a ring of staging slots in the receiver's memory, which the receiver owns, and whose use it
// pays back with a credit for each slot. What has arrived stays readable after the peer is gone.
//
// Credits are paid as far as the chunks of operations that have begun need them. So a peer that has sent its
// last chunk and leaves is sent nothing more: bytes that come in on a socket that was closed make the kernel
// throw away what has not left it.
//
// Threads as the endpoint's. No call blocks. A failure of the endpoint is not reported by itself but by the
// calls that can no longer succeed because of it.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/outstanding.h"
#include "collectives/wire.h"
#include "transports/fabric.h"

namespace cenote::collectives {

struct LinkOptions {
  std::size_t chunk_bytes = std::size_t{128} * 1024;  ///< of one staging slot
  std::uint32_t slots = 8;
  std::size_t inline_bytes =
      wire::max_data;                  ///< a chunk up to this travels as a message; at most wire::max_data
  Outstanding* outstanding = nullptr;  ///< where what put_into and get_from began is found; outlives the link
};

/// Whose chunk was put: handed back when its source may be reused.
struct SentChunk {
  void* operation = nullptr;
  std::uint32_t instance = 0;
  std::uint64_t elements = 0;
};

class PeerLink {
 public:
  /// Starts to connect; usable at once. `deadline` bounds the setting up.
  static Result<std::unique_ptr<PeerLink>> open(transport::Fabric& fabric, std::span<const std::byte> address,
                                                std::uint32_t rank, const LinkOptions& options,
                                                Deadline deadline);

  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] bool fits_message(std::size_t bytes) const { return bytes <= options_.inline_bytes; }

  /// Makes the staging ring and tells the peer. Once, before the first large chunk can come.
  Result<void> announce();
  [[nodiscard]] bool announced() const { return staging_ != nullptr; }

  /// An operation begins in which `staged` large chunks will come.
  void expect(std::uint64_t staged) { expected_ += staged; }

  // Sending. False: not now, progress and try again.

  /// `call`: put in front, where it is given.
  Result<bool> send_data(std::span<const std::byte> bytes, std::uint32_t sequence,
                         const wire::CallHeader* call, const SentChunk& owner);
  Result<bool> send_call(const wire::CallHeader& call, std::uint32_t sequence);
  /// `bytes` stay unchanged until `take_sent` returns the owner.
  Result<bool> put(std::span<const std::byte> bytes, const SentChunk& owner);
  [[nodiscard]] bool can_put() const;
  /// Where the next put's bytes may be gathered, when they lie in memory that the CPU cannot read.
  std::span<std::byte> bounce();
  /// The oldest chunk whose source may be reused, in the order they were sent.
  std::optional<SentChunk> take_sent();
  [[nodiscard]] bool sending() const { return sent_.head != sent_.tail; }
  /// Nullptr where none is on its way.
  [[nodiscard]] const SentChunk* oldest_sent() const {
    return sending() ? &sent_.entries[sent_.head % sent_.entries.size()].owner : nullptr;
  }
  /// A chunk that was sent will never be taken: the endpoint failed before it had left.
  [[nodiscard]] bool lost_chunk() const { return lost_chunk_; }

  /// Whether a rank waits; lost when the peer does not take its messages.
  void send_stalled(const wire::Stalled& note, std::uint32_t sequence);

  // Beside the streams: straight into the peer's memory, and out of it. `id` is that of an Outstanding
  // operation, which is done when `bytes` may be used again. False: the endpoint's queue is full.

  Result<bool> put_into(std::span<const std::byte> bytes, transport::RemoteSlice at, std::uint32_t signal,
                        std::uint64_t id);
  Result<bool> get_from(std::span<std::byte> bytes, transport::RemoteSlice from, std::uint64_t id);
  [[nodiscard]] bool one_sided() const { return one_sided_ > 0; }
  /// One of them will never be done.
  [[nodiscard]] bool lost_one_sided() const { return lost_one_sided_; }
  /// How often the peer has added to counter `slot` of this side. What it put before is there.
  [[nodiscard]] std::uint64_t signal(std::uint32_t slot) const { return link_.endpoint->signal(slot); }
  /// Adds 1 to wire::greeting_signal of the peer. False: not now.
  Result<bool> greet();
  [[nodiscard]] transport::Transport& transport() const { return *link_.transport; }

  // Receiving.

  /// Takes messages, completions and owed credits as far as it can. True when something came.
  bool pump();
  /// The next message, if it is `kind` data or call; nullptr when none has come.
  [[nodiscard]] const std::byte* front_message() const;
  void pop_message();
  /// The next staged chunk's slot, `bytes` long; empty when it has not come.
  [[nodiscard]] std::span<const std::byte> front_staged(std::size_t bytes) const;
  void pop_staged(std::size_t bytes);

  /// What the peer said last about waiting.
  struct Note {
    wire::Stalled stalled{};
    std::uint32_t sequence = 0;
    Clock::time_point when{};
  };
  [[nodiscard]] const std::optional<Note>& note() const { return note_; }

  /// Why nothing more comes or goes: the endpoint's failure, or nonsense from the peer. What came before that
  /// is still there.
  [[nodiscard]] std::optional<Error> failure() const {
    return nonsense_ ? nonsense_ : link_.endpoint->failure();
  }
  [[nodiscard]] bool drained() const { return link_.endpoint->drained(); }
  void close(std::string_view reason) { link_.endpoint->close(reason); }
  [[nodiscard]] std::string_view transport_name() const { return link_.endpoint->transport_name(); }
  [[nodiscard]] const std::string& reason() const { return link_.reason; }
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }
  [[nodiscard]] std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  PeerLink(transport::Link link, std::uint32_t rank, const LinkOptions& options);

  /// Messages that have been taken from the endpoint and wait for their operation.
  struct Inbox {
    static constexpr std::uint32_t capacity = 8;
    std::array<std::array<std::byte, wire::max_message>, capacity> messages;
    std::uint32_t head = 0, tail = 0;
  };
  /// Chunks in flight, oldest first.
  struct Sent {
    struct Entry {
      SentChunk owner;
      std::uint64_t tag = 0;
      bool done = false;
    };
    std::vector<Entry> entries;
    std::uint64_t head = 0, tail = 0;
  };

  void say_hello();
  Result<void> accept(std::size_t size);
  bool take_messages();
  bool poll_completions();
  void pay_credits();
  [[nodiscard]] tl::unexpected<Error> nonsense(std::string_view what) const;

  transport::Link link_;
  std::uint32_t rank_;
  LinkOptions options_;
  std::optional<transport::RemoteKey> peer_staging_;
  std::unique_ptr<transport::Region> staging_;
  std::vector<std::byte> bounce_;
  std::unique_ptr<Inbox> inbox_;
  Sent sent_;
  std::uint64_t puts_ = 0;       ///< chunks put so far
  std::uint64_t consumed_ = 0;   ///< chunks taken from our staging ring so far
  std::uint64_t expected_ = 0;   ///< chunks of the operations that have begun
  std::uint64_t paid_ = 0;       ///< credits given back
  std::uint64_t one_sided_ = 0;  ///< in flight
  bool greeted_ = false;
  bool lost_one_sided_ = false;
  bool hello_due_ = false;
  bool lost_chunk_ = false;
  std::optional<Error> nonsense_;
  bool established_ = false;  ///< something of ours has reached the peer
  std::optional<Note> note_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
};

}  // namespace cenote::collectives
