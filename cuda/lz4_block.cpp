#include "cuda/lz4_block.h"

#include <algorithm>

namespace cenote::cuda {
namespace {

class Block {
 public:
  Block(std::span<const std::byte> in, std::span<std::byte> out) : in_(in), out_(out) {}

  bool decode() {
    while (read_ < in_.size()) {
      const auto token = std::to_integer<unsigned>(in_[read_++]);
      std::size_t literals = token >> 4, match = (token & 15) + 4;
      if (!extend(literals, token >> 4) || !copy_literals(literals)) return false;
      if (read_ == in_.size()) break;  // the last sequence has no match
      if (in_.size() - read_ < 2) return false;
      const auto distance =
          std::to_integer<std::size_t>(in_[read_]) | std::to_integer<std::size_t>(in_[read_ + 1]) << 8;
      read_ += 2;
      if (!extend(match, token & 15) || !copy_match(distance, match)) return false;
    }
    return written_ == out_.size();
  }

 private:
  // A field of 15 is followed by bytes to add, until one is not 255.
  bool extend(std::size_t& length, unsigned field) {
    if (field != 15) return true;
    while (read_ < in_.size()) {
      const auto more = std::to_integer<std::size_t>(in_[read_++]);
      length += more;
      if (more != 255) return true;
    }
    return false;
  }
  bool copy_literals(std::size_t count) {
    if (count > in_.size() - read_ || count > out_.size() - written_) return false;
    std::copy_n(in_.data() + read_, count, out_.data() + written_);
    read_ += count;
    written_ += count;
    return true;
  }
  // May overlap: bytes just written are read again.
  bool copy_match(std::size_t distance, std::size_t count) {
    if (distance == 0 || distance > written_ || count > out_.size() - written_) return false;
    for (std::size_t i = 0; i < count; ++i, ++written_) out_[written_] = out_[written_ - distance];
    return true;
  }

  std::span<const std::byte> in_;
  std::span<std::byte> out_;
  std::size_t read_ = 0, written_ = 0;
};

}  // namespace

Result<void> decode_lz4_block(std::span<const std::byte> block, std::span<std::byte> out) {
  if (Block(block, out).decode()) return {};
  return fail(ErrorCode::invalid_argument, "decompress LZ4 block", "damaged data");
}

}  // namespace cenote::cuda
