#include "transports/regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "runtime/process.h"

namespace cenote::transport {
namespace {

constexpr std::size_t page = 4096;

}  // namespace

class RegionTable::Entered final : public Region {
 public:
  /// `owned` bytes are unmapped at the end; 0: the memory belongs to somebody else.
  Entered(std::shared_ptr<RegionTable> table, const RegionKey& key, std::byte* data, std::size_t owned)
      : table_(std::move(table)),
        packed_(key.pack()),
        id_(key.region),
        data_(data),
        size_(key.size),
        owned_(owned) {
    table_->entries_.emplace(id_, Entry{key, data});
  }
  ~Entered() override {
    table_->entries_.erase(id_);
    if (owned_ != 0) ::munmap(data_, owned_);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const override { return {data_, size_}; }
  [[nodiscard]] const RemoteKey& key() const override { return packed_; }

 private:
  std::shared_ptr<RegionTable> table_;
  RemoteKey packed_;
  std::uint64_t id_;
  std::byte* data_;
  std::size_t size_, owned_;
};

Result<std::unique_ptr<Region>> RegionTable::allocate(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
  if (rounded < bytes)
    return fail(ErrorCode::invalid_argument, "allocate memory", "more than an address space");
  void* base = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return fail(system_error("allocate " + std::to_string(bytes) + " bytes", errno));
  auto region = enter(static_cast<std::byte*>(base), bytes, rounded);
  if (!region) ::munmap(base, rounded);
  return region;
}

Result<std::unique_ptr<Region>> RegionTable::add(const MemoryDescription& memory) {
  if (memory.kind != MemoryKind::host || !memory.cpu_readable)
    return fail(ErrorCode::not_supported, "register memory of " + memory.home,
                "what comes is written by the CPU, so it must be memory of the CPU");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number.
  return enter(reinterpret_cast<std::byte*>(memory.address), memory.size, 0);
}

Result<std::unique_ptr<Region>> RegionTable::enter(std::byte* data, std::size_t bytes, std::size_t owned) {
  RegionKey key;
  CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&key.token, 1))));
  key.owner = owner_;
  key.region = next_++;
  key.size = bytes;
  return std::make_unique<Entered>(shared_from_this(), key, data, owned);
}

std::byte* RegionTable::reach(std::uint64_t region, std::uint64_t token, std::uint64_t offset,
                              std::uint64_t length) const {
  const auto found = entries_.find(region);
  if (found == entries_.end()) return nullptr;
  const Entry& entry = found->second;
  if (entry.key.token != token || offset > entry.key.size || length > entry.key.size - offset) return nullptr;
  return entry.data + offset;
}

// An honest peer may use a key a little too long; one that has the key has its bounds as well, and checks
// them.
Error RegionTable::misfit(const char* stage, std::uint64_t region, std::uint64_t token) const {
  const auto found = entries_.find(region);
  if (found == entries_.end() || found->second.key.token != token)
    return {ErrorCode::permission_denied, stage, "the key's region was destroyed, or the key is forged"};
  return {ErrorCode::protocol_error, stage, "offset or length do not fit the key's region"};
}

}  // namespace cenote::transport
