// Writer and Reader: fixed-width little-endian fields in a byte string. Reader never reads past its end and
// never throws: the first bad field makes it `bad()`, and every later field reads as zero or empty.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cenote {

static_assert(std::endian::native == std::endian::little,
              "the wire is little endian; add swaps for this machine");

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Writer {
 public:
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  Writer& put(T value) {
    append(&value, sizeof(T));
    return *this;
  }
  /// Bytes as they are, without a length.
  Writer& raw(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  /// A u32 length, then the bytes.
  Writer& blob(std::span<const std::byte> bytes) {
    return put(static_cast<std::uint32_t>(bytes.size())).raw(bytes);
  }
  Writer& text(std::string_view text) { return blob(as_bytes(text)); }

  [[nodiscard]] const Bytes& bytes() const { return out_; }
  [[nodiscard]] Bytes take() { return std::move(out_); }

 private:
  /// Kept out of line: where g++ 12 sees a whole message built inline, it warns of overflows that are none.
  [[gnu::noinline]] void append(const void* from, std::size_t count) {
    const auto at = out_.size();
    out_.resize(at + count);
    std::memcpy(out_.data() + at, from, count);
  }

  Bytes out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  T get() {
    T value{};
    auto bytes = raw(sizeof(T));
    if (!bad_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  /// A view into the input; empty and bad() when fewer than `count` bytes are left.
  std::span<const std::byte> raw(std::size_t count) {
    if (bad_ || count > in_.size()) {
      bad_ = true;
      return {};
    }
    auto head = in_.first(count);
    in_ = in_.subspan(count);
    return head;
  }
  std::span<const std::byte> blob() { return raw(get<std::uint32_t>()); }
  std::string text() { return std::string(as_text(blob())); }

  [[nodiscard]] bool bad() const { return bad_; }
  [[nodiscard]] std::size_t left() const { return in_.size(); }
  /// True when every field was there and nothing is left over.
  [[nodiscard]] bool finished() const { return !bad_ && in_.empty(); }

 private:
  std::span<const std::byte> in_;
  bool bad_ = false;
};

}  // namespace cenote
