#include "cuda/fatbin.h"

#include <zstd.h>

#include <cstring>

#include "cuda/lz4_block.h"

namespace cenote::cuda {
namespace {

constexpr std::size_t container_header = 16;
constexpr std::size_t entry_header = 64;  // the part that every entry has
constexpr std::uint16_t kind_ptx = 1;
constexpr std::uint64_t flag_lz4 = 0x2000, flag_zstd = 0x8000;
constexpr std::uint64_t max_text = std::uint64_t{256} << 20;

template <class T>
T field(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

auto damaged(std::string what) { return fail(ErrorCode::invalid_argument, "read fatbin", std::move(what)); }

struct EntryHeader {
  std::uint16_t kind;
  std::uint32_t header_size;
  std::uint64_t payload_size;
  std::uint32_t compressed_size;
  std::uint32_t architecture;
  std::uint64_t flags;
  std::uint64_t uncompressed_size;
};

EntryHeader header_of(std::span<const std::byte> entry) {
  return {field<std::uint16_t>(entry, 0),  field<std::uint32_t>(entry, 4),  field<std::uint64_t>(entry, 8),
          field<std::uint32_t>(entry, 16), field<std::uint32_t>(entry, 28), field<std::uint64_t>(entry, 40),
          field<std::uint64_t>(entry, 56)};
}

Result<std::string> text_of(const EntryHeader& h, std::span<const std::byte> payload) {
  std::string text;
  if (h.compressed_size == 0) {
    text = std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
  } else {
    if (h.compressed_size > payload.size()) return damaged("an entry's compressed size reaches over its end");
    if (h.uncompressed_size > max_text)
      return damaged("an entry of " + std::to_string(h.uncompressed_size) + " bytes");
    const auto compressed = payload.first(h.compressed_size);
    text.resize(h.uncompressed_size);
    if ((h.flags & flag_zstd) != 0) {
      const auto size = ZSTD_decompress(text.data(), text.size(), compressed.data(), compressed.size());
      if (ZSTD_isError(size) != 0) return damaged(std::string("Zstandard: ") + ZSTD_getErrorName(size));
      text.resize(size);
    } else if ((h.flags & flag_lz4) != 0) {
      CENOTE_TRY(decode_lz4_block(compressed, std::as_writable_bytes(std::span(text.data(), text.size()))));
    } else {
      return fail(ErrorCode::not_supported, "read fatbin", "an entry with an unknown compression");
    }
  }
  text.resize(std::strlen(text.c_str()));  // the terminator and the padding behind it
  return text;
}

}  // namespace

Result<std::vector<FatbinPtx>> fatbin_ptx(std::span<const std::byte> container) {
  if (container.size() < container_header || !is_fatbin(container)) return damaged("no container header");
  const auto version = field<std::uint16_t>(container, 4), header = field<std::uint16_t>(container, 6);
  if (version != 1 || header < container_header)
    return fail(ErrorCode::not_supported, "read fatbin", "container version " + std::to_string(version));
  const auto size = field<std::uint64_t>(container, 8);
  if (header > container.size() || size > container.size() - header)
    return damaged("the container is cut off");
  std::vector<FatbinPtx> texts;
  for (auto rest = container.subspan(header, size); !rest.empty();) {
    if (rest.size() < entry_header) return damaged("an entry is cut off");
    const EntryHeader h = header_of(rest);
    if (h.header_size < entry_header || h.header_size > rest.size() ||
        h.payload_size > rest.size() - h.header_size)
      return damaged("an entry reaches over the end of the container");
    if (h.kind == kind_ptx) {
      CENOTE_ASSIGN(auto text, text_of(h, rest.subspan(h.header_size, h.payload_size)));
      texts.push_back({h.architecture, std::move(text)});
    }
    rest = rest.subspan(h.header_size + h.payload_size);
  }
  return texts;
}

std::uint64_t fatbin_decompressed_size(std::span<const std::byte> container) {
  if (container.size() < container_header || !is_fatbin(container)) return 0;
  const auto header = field<std::uint16_t>(container, 6);
  if (header < container_header || header > container.size()) return 0;
  std::uint64_t total = 0;
  for (auto rest = container.subspan(header); rest.size() >= entry_header;) {
    const EntryHeader h = header_of(rest);
    if (h.header_size < entry_header || h.header_size > rest.size() ||
        h.payload_size > rest.size() - h.header_size)
      break;
    if (h.compressed_size != 0)
      total = h.uncompressed_size > UINT64_MAX - total ? UINT64_MAX : total + h.uncompressed_size;
    rest = rest.subspan(h.header_size + h.payload_size);
  }
  return total;
}

Result<std::vector<std::span<const std::byte>>> fatbin_containers(const void* wrapper) {
  struct Wrapper {
    std::uint32_t magic, version;
    const void* data;
    const void* extra;
  };
  Wrapper w{};
  std::memcpy(&w, wrapper, sizeof w);
  if (w.magic != fatbin_wrapper_magic) return damaged("no wrapper");
  std::vector<std::span<const std::byte>> containers;
  const auto add = [&](const void* data) {
    const auto* bytes = static_cast<const std::byte*>(data);
    const auto size = data == nullptr ? 0 : fatbin_size({bytes, container_header});
    if (size != 0) containers.emplace_back(bytes, size);
    return size != 0;
  };
  bool good = true;
  if (w.version == 1) {
    good = add(w.data);
  } else if (w.version == 2) {
    for (auto* const* unit = static_cast<void* const*>(w.extra); good && unit != nullptr && *unit != nullptr;
         ++unit)
      good = add(*unit);
  } else {
    return fail(ErrorCode::not_supported, "read fatbin", "wrapper version " + std::to_string(w.version));
  }
  if (!good) return damaged("a wrapper points at no container");
  return containers;
}

}  // namespace cenote::cuda
