// A ring of batches from one side to the other: the receiver owns the memory, the sender puts one batch into
// one slot with one signal, the receiver gives slots back by a signal of its own. Neither side ever waits
// here.
//
// A slot is a head (commands, see codec.h) and a bulk area that commands of the same batch refer to. The
// receiver copies the head before it looks at it, so that a sender that changes it meanwhile changes nothing.
//
// Both ends belong to one thread at a time, like the endpoint. Errors: what the endpoint says; protocol_error
// when a batch does not fit its slot.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transports/transport.h"

namespace cenote::pool::remote {

inline constexpr std::size_t ring_head_bytes = std::size_t{16} << 10;
inline constexpr std::size_t ring_bulk_bytes = std::size_t{256} << 10;
inline constexpr std::size_t ring_slot_bytes = ring_head_bytes + ring_bulk_bytes;
inline constexpr std::uint32_t ring_slots = 16;
inline constexpr std::size_t ring_bytes = ring_slots * ring_slot_bytes;
inline constexpr std::uint32_t max_lanes = transport::signal_slots / 2;  ///< two counters each way for a lane

/// First 16 bytes of a slot.
struct BatchHeader {
  std::uint32_t sequence = 0;    ///< low half of the batch's number, from 0
  std::uint32_t head_bytes = 0;  ///< commands behind this header
  std::uint32_t bulk_bytes = 0;  ///< bytes in use of the bulk area
  std::uint32_t zero = 0;
};
inline constexpr std::size_t batch_capacity = ring_head_bytes - sizeof(BatchHeader);

/// Which memory and which signal counters a ring uses.
struct RingPlace {
  std::uint64_t offset = 0;  ///< of the ring in the receiver's region
  std::uint32_t signal = 0;  ///< counted at the receiver: batches put
  std::uint32_t credit = 0;  ///< counted at the sender: slots given back
};

/// Tags of the sender's puts.
enum PutTag : std::uint64_t { tag_batch = 1, tag_bulk = 2 };

class RingSender {
 public:
  /// `endpoint` outlives the sender.
  RingSender(transport::Endpoint& endpoint, const transport::RemoteKey& key, RingPlace place);

  /// A slot is free: head(), put_bulk() and commit() may be used.
  [[nodiscard]] bool room() const { return in_flight() < ring_slots; }
  /// Batches whose slots have not come back.
  [[nodiscard]] std::uint64_t in_flight() const {
    const auto back = endpoint_.signal(place_.credit);
    return back < sent_ ? sent_ - back : 0;
  }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }
  /// Where the commands of the next batch are written: batch_capacity bytes. Only while room().
  [[nodiscard]] std::span<std::byte> head() const;
  /// Where bulk bytes may be gathered before put_bulk: ring_bulk_bytes. Only while room().
  [[nodiscard]] std::span<std::byte> bulk() const;
  /// Puts `bytes` at `at` of the slot's bulk area. They are unchanged until the completion (tag_bulk).
  /// resource_exhausted: the endpoint is full; progress and try again.
  Result<void> put_bulk(std::span<const std::byte> bytes, std::size_t at);
  /// Sends the batch. resource_exhausted: as above, the batch stays as it is.
  Result<void> commit(std::size_t head_bytes, std::size_t bulk_bytes);

 private:
  [[nodiscard]] std::size_t slot() const { return static_cast<std::size_t>(sent_ % ring_slots); }

  transport::Endpoint& endpoint_;
  transport::RemoteKey key_;
  RingPlace place_;
  std::uint64_t sent_ = 0;
  std::unique_ptr<std::byte[]> mirror_;
};

/// One batch as received: `commands` is private memory of the receiver, `bulk` lies in the slot.
struct Batch {
  std::uint64_t number;
  std::span<const std::byte> commands;
  std::span<std::byte> bulk;
};

class RingReceiver {
 public:
  /// `memory` is this ring's part of the region. `heads`: ring_slots * ring_head_bytes for the copies of the
  /// heads. `peer`: any region of the sender, where the credits' empty puts go.
  RingReceiver(transport::Endpoint& endpoint, std::span<std::byte> memory, std::span<std::byte> heads,
               const transport::RemoteKey& peer, RingPlace place)
      : endpoint_(endpoint), memory_(memory), heads_(heads), peer_(peer), place_(place) {}

  /// The next batch, which stays valid until release() gave back its slot; nullopt: none has come.
  Result<std::optional<Batch>> next();
  /// Gives back every slot up to batch `number`, inclusive, which next() has returned.
  void release(std::uint64_t number) { released_ = number + 1; }
  /// Tells the sender of released slots, as far as the endpoint takes it; call it again while owing().
  Result<void> pay();
  [[nodiscard]] bool owing() const { return paid_ < released_; }
  [[nodiscard]] bool pending() const { return endpoint_.signal(place_.signal) > taken_; }

 private:
  transport::Endpoint& endpoint_;
  std::span<std::byte> memory_;
  std::span<std::byte> heads_;
  transport::RemoteKey peer_;
  RingPlace place_;
  std::uint64_t taken_ = 0, released_ = 0, paid_ = 0;
};

}  // namespace cenote::pool::remote
