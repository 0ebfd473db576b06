// Copies and fills. What may still be read or written after the call returns is CUDA's rule: pageable host
// memory is not, pinned memory is until the stream gets there.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/emulator/driver_state.h"

namespace cenote::cuda::emulator {
namespace {

// Up to here a plain copy from pageable memory returns once it has been staged.
constexpr std::size_t kPlainStaging = 64 << 10;
// Up to here an asynchronous one is staged; beyond, it waits for its stream.
constexpr std::size_t kAsyncStaging = 4 << 20;
constexpr std::size_t kPage = 4096;

template <class T>
bool move_word(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != sizeof(T) || reinterpret_cast<std::uintptr_t>(to) % alignof(T) != 0) return false;
  T word;
  std::memcpy(&word, from, sizeof word);
  std::atomic_ref(*reinterpret_cast<T*>(to)).store(word, std::memory_order_release);
  return true;
}

// One word arrives whole, for a stream may wait for its value.
void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (move_word<std::uint32_t>(to, from, bytes) || move_word<std::uint64_t>(to, from, bytes)) return;
  std::memmove(to, from, bytes);
}

void move_pieces(const std::vector<Piece>& to, const std::vector<Piece>& from) {
  std::size_t to_at = 0;
  std::size_t from_at = 0;
  for (std::size_t t = 0, f = 0; t < to.size() && f < from.size();) {
    const auto count = std::min(to[t].bytes - to_at, from[f].bytes - from_at);
    move_bytes(to[t].host + to_at, from[f].host + from_at, count);
    to_at += count;
    from_at += count;
    if (to_at == to[t].bytes) {
      ++t;
      to_at = 0;
    }
    if (from_at == from[f].bytes) {
      ++f;
      from_at = 0;
    }
  }
}

void fill_bytes(std::byte* at, std::size_t bytes, std::uint32_t pattern, std::size_t width) {
  if (width == 1) {
    std::memset(at, static_cast<int>(pattern), bytes);
    return;
  }
  for (std::size_t i = 0; i + sizeof(pattern) <= bytes; i += sizeof(pattern)) {
    std::memcpy(at + i, &pattern, sizeof(pattern));
  }
}

std::vector<Piece> host_piece(const void* pointer, std::size_t bytes) {
  return {Piece{static_cast<std::byte*>(const_cast<void*>(pointer)), bytes, nullptr}};
}

// A copy of pageable memory, owned by the piece that names it.
std::vector<Piece> stage(const void* from, std::size_t bytes) {
  std::shared_ptr<std::byte[]> staged(new std::byte[bytes]);
  std::memcpy(staged.get(), from, bytes);
  return {Piece{staged.get(), bytes, std::shared_ptr<void>(staged, staged.get())}};
}

}  // namespace

// Whether the address is one that only devices can follow.
bool EmulatedDriver::is_device_address(DevicePtr pointer) const {
  for (const auto& card : state_->devices) {
    if (card.heap->reserves(pointer)) return true;
  }
  const auto region = state_->space.find(pointer);
  return region && region->kind != RegionKind::pinned;
}

Status EmulatedDriver::copy(const Entered& in, Stream on, std::vector<Piece> to, std::vector<Piece> from,
                            bool wait) {
  const auto target = stream(in, on);
  if (!target) return Status::invalid_handle;
  std::optional<Mark> mark;
  const auto status = enqueue(
      in, *target, Task([to = std::move(to), from = std::move(from)] { move_pieces(to, from); }), {}, &mark);
  if (status != Status::success || !wait) return status;
  return wait_for(in, *target->context, *mark);
}

Status EmulatedDriver::copy_in(DevicePtr dst, const void* src, std::size_t bytes, Stream on, bool plain) {
  auto in = enter_context();
  if (in.status != Status::success || bytes == 0) return in.status;
  auto to = state_->space.resolve(dst, bytes);
  if (to.empty()) return bad_range(in, "copy to the device", dst, bytes);
  const auto host = reinterpret_cast<DevicePtr>(src);
  if (host < kPage || is_device_address(host)) {
    return refuse(*in.thread, Status::invalid_value, "the source of a copy to the device is not host memory");
  }
  const bool pinned = state_->space.pinned(src, bytes);
  if (pinned) return copy(in, on, std::move(to), state_->space.resolve(host, bytes), plain);
  if (bytes <= (plain ? kPlainStaging : kAsyncStaging))
    return copy(in, on, std::move(to), stage(src, bytes), false);
  return copy(in, on, std::move(to), host_piece(src, bytes), true);
}

Status EmulatedDriver::copy_out(void* dst, DevicePtr src, std::size_t bytes, Stream on, bool plain) {
  auto in = enter_context();
  if (in.status != Status::success || bytes == 0) return in.status;
  auto from = state_->space.resolve(src, bytes);
  if (from.empty()) return bad_range(in, "copy from the device", src, bytes);
  const auto host = reinterpret_cast<DevicePtr>(dst);
  if (host < kPage || is_device_address(host)) {
    return refuse(*in.thread, Status::invalid_value,
                  "the target of a copy from the device is not host memory");
  }
  const bool pinned = state_->space.pinned(dst, bytes);
  auto to = pinned ? state_->space.resolve(host, bytes) : host_piece(dst, bytes);
  return copy(in, on, std::move(to), std::move(from), plain || !pinned);
}

Status EmulatedDriver::copy_within(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream on) {
  auto in = enter_context();
  if (in.status != Status::success || bytes == 0) return in.status;
  auto to = state_->space.resolve(dst, bytes);
  if (to.empty()) return bad_range(in, "copy to the device", dst, bytes);
  auto from = state_->space.resolve(src, bytes);
  if (from.empty()) return bad_range(in, "copy from the device", src, bytes);
  return copy(in, on, std::move(to), std::move(from), false);
}

Status EmulatedDriver::fill(DevicePtr dst, std::uint32_t pattern, std::size_t width, std::size_t count,
                            Stream on) {
  auto in = enter_context();
  if (in.status != Status::success || count == 0) return in.status;
  if (dst % width != 0 || count > ~std::size_t{0} / width) return Status::invalid_value;
  auto to = state_->space.resolve(dst, count * width);
  if (to.empty()) return bad_range(in, "fill", dst, count * width);
  const auto target = stream(in, on);
  if (!target) return Status::invalid_handle;
  return enqueue(in, *target, Task([to = std::move(to), pattern, width] {
                   for (const auto& piece : to) fill_bytes(piece.host, piece.bytes, pattern, width);
                 }));
}

Status EmulatedDriver::memcpy_htod(DevicePtr dst, const void* src, std::size_t bytes) {
  return copy_in(dst, src, bytes, nullptr, true);
}
Status EmulatedDriver::memcpy_dtoh(void* dst, DevicePtr src, std::size_t bytes) {
  return copy_out(dst, src, bytes, nullptr, true);
}
Status EmulatedDriver::memcpy_dtod(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  return copy_within(dst, src, bytes, nullptr);
}
Status EmulatedDriver::memcpy_htod_async(DevicePtr dst, const void* src, std::size_t bytes, Stream stream) {
  return copy_in(dst, src, bytes, stream, false);
}
Status EmulatedDriver::memcpy_dtoh_async(void* dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return copy_out(dst, src, bytes, stream, false);
}
Status EmulatedDriver::memcpy_dtod_async(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return copy_within(dst, src, bytes, stream);
}
Status EmulatedDriver::memset_d8(DevicePtr dst, unsigned char value, std::size_t count) {
  return fill(dst, value, 1, count, nullptr);
}
Status EmulatedDriver::memset_d8_async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) {
  return fill(dst, value, 1, count, stream);
}
Status EmulatedDriver::memset_d32_async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) {
  return fill(dst, value, 4, count, stream);
}

}  // namespace cenote::cuda::emulator
