#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/process.h"
#include "transports/listening_transport.h"
#include "transports/verbs/gpu_memory.h"
#include "transports/verbs/verbs.h"
#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport {
namespace verbs {
namespace {

constexpr std::size_t page = 4096;
constexpr unsigned remote_rights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

class VerbsRegion final : public Region {
 public:
  /// `owned` bytes are unmapped at the end; 0: the memory belongs to somebody else.
  VerbsRegion(std::shared_ptr<VerbsCore> core, std::unique_ptr<Registered> memory, std::size_t size,
              std::size_t owned, const std::array<std::uint32_t, 4>& token = {})
      : core_(std::move(core)), memory_(std::move(memory)), size_(size), owned_(owned) {
    VerbsKey key;
    key.owner = core_->self.header.id;
    key.region = core_->next_region++;
    if (memory_->staged()) key.region |= staged_mark;
    key.base = reinterpret_cast<std::uintptr_t>(memory_->data);
    key.size = size;
    for (std::size_t i = 0; i < memory_->regions.size(); ++i) key.rkeys[i] = memory_->regions[i]->rkey;
    if (memory_->staged()) {
      std::copy(token.begin(), token.end(), key.rkeys.begin());
      core_->staged[key.region] = {memory_.get(), token};
      staged_ = key.region;
    }
    key_ = key.pack();
    core_->registrations->add(memory_.get());
    if (memory_->device) ++core_->device_regions;
  }
  ~VerbsRegion() override {
    core_->registrations->remove(memory_.get());
    if (memory_->device) {
      --core_->device_regions;
      core_->visibility.remove(*memory_);
      core_->staged.erase(staged_);
      if (memory_->pinned) {
        if (auto finished = memory_->pinned->finish_all(); !finished && core_->log != nullptr)
          core_->log->write(LogLevel::error, finished.error());
      }
    }
    std::byte* const data = memory_->data;
    memory_.reset();
    if (owned_ != 0) ::munmap(data, owned_);
  }
  VerbsRegion(const VerbsRegion&) = delete;
  VerbsRegion& operator=(const VerbsRegion&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const override { return {memory_->data, size_}; }
  [[nodiscard]] const RemoteKey& key() const override { return key_; }

 private:
  std::shared_ptr<VerbsCore> core_;
  std::unique_ptr<Registered> memory_;
  RemoteKey key_;
  std::size_t size_, owned_;
  std::uint64_t staged_ = 0;
};

class VerbsTransport final : public ListeningTransport<VerbsCore, VerbsEndpoint, VerbsAddress> {
 public:
  using ListeningTransport::ListeningTransport;
  [[nodiscard]] Limits limits() const override { return {max_message, true}; }
  Result<std::unique_ptr<Region>> allocate(std::size_t bytes) override {
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
    if (rounded < bytes)
      return fail(ErrorCode::invalid_argument, "allocate memory", "more than an address space");
    void* base = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
      return fail(cenote::system_error("allocate " + std::to_string(bytes) + " bytes", errno));
    auto made = make(base, bytes, rounded);
    if (!made) ::munmap(base, rounded);
    return made;
  }
  Result<std::unique_ptr<Region>> register_memory(const MemoryDescription& memory) override {
    if (memory.kind == MemoryKind::device) return register_device(memory);
    if (memory.kind != MemoryKind::host || !memory.cpu_readable)
      return fail(ErrorCode::not_supported, "register memory of " + memory.home,
                  "memory behind a lease is registered where it lives");
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number.
    return make(reinterpret_cast<void*>(memory.address), memory.size, 0);
  }

 private:
  Result<std::unique_ptr<Region>> make(void* data, std::size_t bytes, std::size_t owned) {
    CENOTE_ASSIGN(auto registered, core_->registrations->make(data, bytes, access()));
    return std::make_unique<VerbsRegion>(core_, std::move(registered), bytes, owned);
  }
  Result<std::unique_ptr<Region>> register_device(const MemoryDescription& memory) {
    CENOTE_ASSIGN(auto registered, register_gpu_memory(*core_, memory, access()));
    if (!registered->staged()) CENOTE_TRY(core_->visibility.add(*registered, memory));
    core_->gated = core_->gated || core_->visibility.watches();
    for (VerbsEndpoint* endpoint : core_->endpoints) endpoint->look_at_memory();
    std::array<std::uint32_t, 4> token{};
    CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(token))));
    return std::make_unique<VerbsRegion>(core_, std::move(registered), memory.size, 0, token);
  }
  [[nodiscard]] unsigned access() const {
    return remote_rights | (core_->options.relaxed_ordering ? unsigned{IBV_ACCESS_RELAXED_ORDERING} : 0U);
  }
};

}  // namespace
}  // namespace verbs

Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options) {
  CENOTE_ASSIGN(auto core, verbs::VerbsCore::create(options));
  return std::make_unique<verbs::VerbsTransport>(std::move(core));
}

}  // namespace cenote::transport
