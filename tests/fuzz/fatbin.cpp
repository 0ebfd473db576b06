// Fat binaries that a client sends: containers with sizes, offsets and compressed texts that may all be lies.
#include "cuda/fatbin.h"

#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

/// A container with one plain PTX text, as fatbinary lays it out: 16 bytes of header, 64 of entry, the text.
Bytes container(std::string_view ptx, std::uint16_t kind, std::uint64_t flags, std::uint32_t compressed) {
  Writer entry;
  entry.put(kind).put(std::uint16_t{0x0101}).put(std::uint32_t{64}).put(std::uint64_t{ptx.size()});
  entry.put(compressed).put(std::uint32_t{0}).put(std::uint16_t{0}).put(std::uint16_t{9});
  entry.put(std::uint32_t{75}).put(std::uint64_t{0}).put(flags).put(std::uint64_t{0});
  entry.put(static_cast<std::uint64_t>(compressed == 0 ? 0 : 4096));
  Writer whole;
  whole.put(cuda::fatbin_container_magic).put(std::uint16_t{1}).put(std::uint16_t{16});
  whole.put(std::uint64_t{entry.bytes().size() + ptx.size()}).raw(entry.bytes()).raw(as_bytes(ptx));
  return whole.take();
}

}  // namespace

std::vector<Bytes> seeds() {
  using std::string_view_literals::operator""sv;
  constexpr std::string_view text = ".version 8.0\n.target sm_75\n.address_size 64\n";
  // An LZ4 block: eleven literals, then a match that repeats them.
  constexpr std::string_view block = "\xb4.version 8.\x0b\x00\x50\x30\n\n\n\n"sv;
  constexpr std::string_view frame = "\x28\xb5\x2f\xfd\x20\x04\x21\x00\x00.ptx"sv;
  return {container(text, 1, 0x11, 0), container(text, 2, 0x11, 0),
          container(block, 1, 0x2011, static_cast<std::uint32_t>(block.size())),
          container(frame, 1, 0x8011, static_cast<std::uint32_t>(frame.size()))};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cenote;
  const auto bytes = std::as_bytes(std::span(data, size));
  // What decompressing would yield is bounded here as a worker bounds it before it begins.
  if (cuda::fatbin_decompressed_size(bytes) > (std::uint64_t{1} << 20U)) return 0;
  (void)cuda::is_fatbin(bytes);
  (void)cuda::fatbin_size(bytes);
  const auto texts = cuda::fatbin_ptx(bytes);
  if (!texts) fuzz::require(!texts.error().cause.empty(), "a refusal has a cause");
  return 0;
}
