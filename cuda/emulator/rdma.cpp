#include "cuda/emulator/rdma.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cenote::cuda::emulator {
namespace {

constexpr std::size_t kBlock = 256;

// Where `changed` differs from `agreed`, both `other` and `agreed` take its bytes.
void carry_over(const std::byte* changed, std::byte* agreed, std::byte* other, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kBlock) {
    const auto here = std::min(kBlock, bytes - at);
    if (std::memcmp(changed + at, agreed + at, here) == 0) continue;
    for (std::size_t i = at; i < at + here; ++i) {
      if (changed[i] == agreed[i]) continue;
      other[i] = agreed[i] = changed[i];
    }
  }
}

// Where the device differs from `agreed` and the NIC does not.
void show(const std::byte* device, std::byte* agreed, std::byte* nic, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kBlock) {
    const auto here = std::min(kBlock, bytes - at);
    if (std::memcmp(device + at, agreed + at, here) == 0) continue;
    for (std::size_t i = at; i < at + here; ++i) {
      if (device[i] != agreed[i] && nic[i] == agreed[i]) nic[i] = agreed[i] = device[i];
    }
  }
}

}  // namespace

struct RdmaExports::Export {
  Export(DevicePtr first, std::size_t count, int descriptor, std::byte* mapping)
      : begin(first), bytes(count), fd(descriptor), nic(mapping), agreed(count) {}
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  ~Export() {
    munmap(nic, bytes);
    close(fd);
  }
  const DevicePtr begin;
  const std::size_t bytes;
  const int fd;
  std::byte* const nic;           // what the NIC sees
  std::vector<std::byte> agreed;  // what both saw when they last were the same
  std::vector<Piece> device;
};

Result<int> RdmaExports::open(DevicePtr begin, std::size_t bytes, const std::vector<Piece>& pieces) {
  std::lock_guard lock(mutex_);
  for (const auto& known : exports_) {
    if (known->begin != begin || known->bytes != bytes) continue;
    const int again = fcntl(known->fd, F_DUPFD_CLOEXEC, 0);
    if (again < 0) return fail(system_error("duplicate a dma-buf", errno));
    return again;
  }
  const int fd = memfd_create("cenote-emulated-dmabuf", MFD_CLOEXEC);
  if (fd < 0) return fail(system_error("create a dma-buf", errno));
  void* nic = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    nic = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int outside = nic == MAP_FAILED ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (outside < 0) {
    auto error = system_error("map a dma-buf", errno);
    if (nic != MAP_FAILED) munmap(nic, bytes);
    close(fd);
    return fail(std::move(error));
  }
  auto entry = std::make_shared<Export>(begin, bytes, fd, static_cast<std::byte*>(nic));
  entry->device = pieces;
  std::size_t at = 0;
  for (const auto& piece : pieces) {
    std::memcpy(entry->agreed.data() + at, piece.host, piece.bytes);
    at += piece.bytes;
  }
  std::memcpy(entry->nic, entry->agreed.data(), bytes);
  exports_.push_back(std::move(entry));
  count_.store(static_cast<unsigned>(exports_.size()), std::memory_order_release);
  return outside;
}

void RdmaExports::merge(bool from_nic) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard lock(mutex_);
  for (const auto& entry : exports_) {
    std::size_t at = 0;
    for (const auto& piece : entry->device) {
      auto* agreed = entry->agreed.data() + at;
      if (from_nic) {
        carry_over(entry->nic + at, agreed, piece.host, piece.bytes);
      } else {
        show(piece.host, agreed, entry->nic + at, piece.bytes);
      }
      at += piece.bytes;
    }
  }
}

void RdmaExports::drop(DevicePtr begin, std::size_t bytes) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard lock(mutex_);
  std::erase_if(exports_, [&](const auto& entry) {
    return entry->begin < begin + bytes && begin < entry->begin + entry->bytes;
  });
  count_.store(static_cast<unsigned>(exports_.size()), std::memory_order_release);
}

}  // namespace cenote::cuda::emulator
