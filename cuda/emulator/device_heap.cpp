#include "cuda/emulator/device_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cenote::cuda::emulator {
namespace {

constexpr std::size_t kPage = 4096;
// Fresh memory is made dirty up to here; filling 100 GiB would take as long as it sounds.
constexpr std::size_t kGarbageBytes = 256 << 10;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

struct Shape {
  std::size_t charged, align, gap;
};

// Large pieces start at pages of the card, as they do there; each has a gap on both sides.
Shape shape_of(std::size_t size, bool granular) {
  if (granular) return {round_up(size, DeviceHeap::granularity), DeviceHeap::granularity, 0};
  const auto charged = round_up(size, DeviceHeap::alignment);
  if (size >= DeviceHeap::large) return {charged, DeviceHeap::granularity, kPage};
  return {charged, DeviceHeap::alignment, DeviceHeap::alignment};
}

// Addresses without access, aligned as the card's pages are: offsets and addresses then align alike.
void* reserve_aligned(std::size_t span) {
  const auto slack = DeviceHeap::granularity;
  void* raw = mmap(nullptr, span + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto head = (slack - reinterpret_cast<std::uintptr_t>(raw) % slack) % slack;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + span, slack - head);
  return begin + head;
}

}  // namespace

Result<std::unique_ptr<DeviceHeap>> DeviceHeap::create(std::size_t memory_bytes, std::uint64_t seed) {
  // Twice the card's memory and some: room for gaps, and for freed addresses to rest before they are reused.
  const auto span = round_up(memory_bytes * 2 + (std::size_t{4} << 30), granularity);
  const int fd = memfd_create("cenote-emulated-gpu", MFD_CLOEXEC);
  if (fd < 0) return fail(system_error("create the memory of an emulated GPU", errno));
  if (ftruncate(fd, static_cast<off_t>(span)) != 0) {
    auto error = system_error("size the memory of an emulated GPU", errno);
    close(fd);
    return fail(std::move(error));
  }
  void* host = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  void* reserved = reserve_aligned(span);
  if (host == MAP_FAILED || reserved == nullptr) {
    auto error = system_error("reserve the addresses of an emulated GPU", errno);
    if (host != MAP_FAILED) munmap(host, span);
    if (reserved != nullptr) munmap(reserved, span);
    close(fd);
    return fail(std::move(error).fix("give the emulated GPU less memory, or raise ulimit -v"));
  }
  madvise(host, span, MADV_DONTDUMP);
  return std::unique_ptr<DeviceHeap>(new DeviceHeap(fd, static_cast<std::byte*>(host),
                                                    reinterpret_cast<std::uint64_t>(reserved), span,
                                                    memory_bytes, seed));
}

DeviceHeap::DeviceHeap(int fd, std::byte* host, std::uint64_t reserved, std::size_t span, std::size_t total,
                       std::uint64_t seed)
    : fd_(fd),
      host_(host),
      reserved_(reserved),
      span_(span),
      total_(total),
      garbage_(seed),
      ranges_(export_table_bytes, span) {}

DeviceHeap::~DeviceHeap() {
  for (std::size_t i = 0; i < export_entries; ++i) {
    // Only touched entries: reading all of them would materialise the table.
    if (exports()[i].size == 0) break;
    __atomic_store_n(&exports()[i].live, 0, __ATOMIC_RELEASE);
  }
  munmap(host_, span_);
  munmap(reinterpret_cast<void*>(reserved_), span_);  // NOLINT(performance-no-int-to-ptr)
  close(fd_);
}

std::optional<std::uint64_t> DeviceHeap::allocate(std::size_t size, bool granular) {
  if (size > total_) return std::nullopt;
  const auto shape = shape_of(size, granular);
  std::lock_guard lock(mutex_);
  if (shape.charged > total_ - used_) return std::nullopt;
  const auto offset = ranges_.take(shape.charged, shape.align, shape.gap);
  if (!offset) return std::nullopt;
  used_ += shape.charged;
  garbage_ = garbage_ * 6364136223846793005u + 1442695040888963407u;
  std::memset(host(*offset), static_cast<int>(garbage_ >> 56) | 1, std::min(shape.charged, kGarbageBytes));
  return offset;
}

void DeviceHeap::free(std::uint64_t offset, std::size_t size, bool granular) {
  const auto shape = shape_of(size, granular);
  std::lock_guard lock(mutex_);
  const auto first = round_up(offset, kPage);
  const auto last = (offset + shape.charged) / kPage * kPage;
  if (last > first) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
  }
  ranges_.give(offset, shape.charged, shape.gap);
  used_ -= shape.charged;
}

bool DeviceHeap::charge(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > total_ - used_) return false;
  used_ += bytes;
  return true;
}

void DeviceHeap::discharge(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  used_ -= bytes;
}

std::size_t DeviceHeap::available() const {
  std::lock_guard lock(mutex_);
  return total_ - used_;
}

}  // namespace cenote::cuda::emulator
