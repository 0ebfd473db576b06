// What the loader of a real driver asks of a container; apart from the rest, which brings a decompressor
// along.
#include <cstring>

#include "cuda/fatbin.h"

namespace cenote::cuda {
namespace {

constexpr std::size_t container_header = 16;

template <class T>
T field(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

bool is_fatbin(std::span<const std::byte> image) {
  return image.size() >= 4 && field<std::uint32_t>(image, 0) == fatbin_container_magic;
}

std::uint64_t fatbin_size(std::span<const std::byte> header) {
  if (header.size() < container_header || !is_fatbin(header)) return 0;
  const auto entries = field<std::uint64_t>(header, 8);
  return entries > ~std::uint64_t{0} - container_header ? 0 : entries + field<std::uint16_t>(header, 6);
}

}  // namespace cenote::cuda
