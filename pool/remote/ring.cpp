#include "pool/remote/ring.h"

#include <cstring>
#include <string>

namespace cenote::pool::remote {

RingSender::RingSender(transport::Endpoint& endpoint, const transport::RemoteKey& key, RingPlace place)
    : endpoint_(endpoint), key_(key), place_(place), mirror_(new std::byte[ring_bytes]) {}

std::span<std::byte> RingSender::head() const {
  return {mirror_.get() + slot() * ring_slot_bytes + sizeof(BatchHeader), batch_capacity};
}

std::span<std::byte> RingSender::bulk() const {
  return {mirror_.get() + slot() * ring_slot_bytes + ring_head_bytes, ring_bulk_bytes};
}

Result<void> RingSender::put_bulk(std::span<const std::byte> bytes, std::size_t at) {
  const transport::RemoteSlice dst{&key_, place_.offset + slot() * ring_slot_bytes + ring_head_bytes + at};
  return endpoint_.put(bytes, dst, transport::no_signal, tag_bulk);
}

Result<void> RingSender::commit(std::size_t head_bytes, std::size_t bulk_bytes) {
  std::byte* const at = mirror_.get() + slot() * ring_slot_bytes;
  const BatchHeader header{static_cast<std::uint32_t>(sent_), static_cast<std::uint32_t>(head_bytes),
                           static_cast<std::uint32_t>(bulk_bytes), 0};
  std::memcpy(at, &header, sizeof header);
  const transport::RemoteSlice dst{&key_, place_.offset + slot() * ring_slot_bytes};
  CENOTE_TRY(endpoint_.put({at, sizeof header + head_bytes}, dst, place_.signal, tag_batch));
  ++sent_;
  return {};
}

Result<std::optional<Batch>> RingReceiver::next() {
  if (!pending()) return std::optional<Batch>{};
  const auto slot = static_cast<std::size_t>(taken_ % ring_slots);
  const auto from = memory_.subspan(slot * ring_slot_bytes, ring_slot_bytes);
  const auto copy = heads_.subspan(slot * ring_head_bytes, ring_head_bytes);
  BatchHeader header;
  std::memcpy(&header, from.data(), sizeof header);
  if (taken_ - released_ >= ring_slots || header.sequence != static_cast<std::uint32_t>(taken_) ||
      header.head_bytes > batch_capacity || header.bulk_bytes > ring_bulk_bytes || header.zero != 0) {
    return fail(ErrorCode::protocol_error, "receive batch " + std::to_string(taken_),
                "header says batch " + std::to_string(header.sequence) + " of " +
                    std::to_string(header.head_bytes) + " + " + std::to_string(header.bulk_bytes) + " bytes");
  }
  std::memcpy(copy.data(), from.data() + sizeof header, header.head_bytes);
  return Batch{taken_++, copy.first(header.head_bytes), from.subspan(ring_head_bytes, header.bulk_bytes)};
}

Result<void> RingReceiver::pay() {
  while (owing()) {
    auto paid = endpoint_.put({}, {&peer_, 0}, place_.credit, tag_batch);
    if (!paid) {
      if (paid.error().code == ErrorCode::resource_exhausted) return {};
      return paid;
    }
    ++paid_;
  }
  return {};
}

}  // namespace cenote::pool::remote
