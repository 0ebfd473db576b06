#include "cuda/emulator/ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace cenote::cuda::emulator {
namespace {

constexpr std::uint32_t kMagic = 0x43504943;  // "CIPC"
constexpr std::size_t kPage = 4096;

bool live(const ExportEntry& entry) { return __atomic_load_n(&entry.live, __ATOMIC_ACQUIRE) == 1; }

Result<ExportEntry*> claim_entry(const DeviceHeap& heap, std::uint64_t offset, std::size_t size) {
  ExportEntry* unused = nullptr;
  for (std::size_t i = 0; i < export_entries; ++i) {
    auto& entry = heap.exports()[i];
    if (live(entry) && entry.offset == offset) return &entry;
    if (!live(entry) && unused == nullptr) unused = &entry;
    if (entry.size == 0) break;  // never used, and so are all behind it
  }
  if (unused == nullptr) {
    return fail(ErrorCode::resource_exhausted, "export device memory",
                std::to_string(export_entries) + " pieces of this card are exported already");
  }
  if (getrandom(unused->secret, sizeof(unused->secret), 0) != sizeof(unused->secret)) {
    return fail(system_error("draw the secret of an IPC handle", errno));
  }
  unused->offset = offset;
  unused->size = size;
  __atomic_store_n(&unused->live, 1, __ATOMIC_RELEASE);
  return unused;
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

Error gone(const IpcHandle& handle, std::string cause) {
  return Error{ErrorCode::peer_failed, "open an IPC memory handle", std::move(cause)}.with(
      "process " + std::to_string(handle.process));
}

Result<std::shared_ptr<ForeignMemory>> map_piece(const IpcHandle& handle, int fd, ExportEntry* table,
                                                 std::size_t file_bytes) {
  const auto& entry = table[handle.entry];
  const auto offset = entry.offset;
  if (!live(entry) || std::memcmp(entry.secret, handle.secret, sizeof(entry.secret)) != 0 ||
      entry.size != handle.size) {
    return fail(gone(handle, "the exporting process has freed that memory"));
  }
  if (offset > file_bytes || handle.size > file_bytes - offset) {
    return fail(gone(handle, "the exported piece lies outside of the card"));
  }
  const auto skip = offset % kPage;
  const auto mapped = (skip + handle.size + kPage - 1) / kPage * kPage;
  void* bytes =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - skip));
  if (bytes == MAP_FAILED) return fail(system_error("map another process's device memory", errno));
  void* address = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    auto error = system_error("reserve addresses for another process's device memory", errno);
    munmap(bytes, mapped);
    return fail(std::move(error));
  }
  return std::make_shared<ForeignMemory>(table, static_cast<std::byte*>(bytes), mapped, skip,
                                         reinterpret_cast<std::uint64_t>(address));
}

}  // namespace

ForeignMemory::~ForeignMemory() {
  munmap(table_, export_table_bytes);
  munmap(mapping_, mapped_);
  munmap(reinterpret_cast<void*>(address_), mapped_);  // NOLINT(performance-no-int-to-ptr)
}

Result<IpcMemHandle> ipc_export(const DeviceHeap& heap, const DeviceUuid& uuid, std::uint64_t offset,
                                std::size_t size) {
  CENOTE_ASSIGN(auto* entry, claim_entry(heap, offset, size));
  struct stat info {};
  if (fstat(heap.descriptor(), &info) != 0) return fail(system_error("export device memory", errno));
  IpcHandle handle{};
  handle.magic = kMagic;
  handle.process = static_cast<std::uint32_t>(getpid());
  handle.descriptor = static_cast<std::uint32_t>(heap.descriptor());
  handle.entry = static_cast<std::uint32_t>(entry - heap.exports());
  handle.inode = info.st_ino;
  handle.size = size;
  std::memcpy(handle.secret, entry->secret, sizeof(handle.secret));
  handle.uuid = uuid;
  IpcMemHandle out{};
  std::memcpy(&out, &handle, sizeof(out));
  return out;
}

void ipc_withdraw(const DeviceHeap& heap, std::uint64_t offset) {
  for (std::size_t i = 0; i < export_entries; ++i) {
    auto& entry = heap.exports()[i];
    if (entry.size == 0) return;
    if (live(entry) && entry.offset == offset) __atomic_store_n(&entry.live, 0, __ATOMIC_RELEASE);
  }
}

std::optional<IpcHandle> ipc_handle(const IpcMemHandle& handle) {
  IpcHandle inner;
  std::memcpy(&inner, &handle, sizeof(inner));
  if (inner.magic != kMagic || inner.entry >= export_entries || inner.size == 0) return std::nullopt;
  return inner;
}

Result<std::shared_ptr<ForeignMemory>> ipc_open(const IpcHandle& handle) {
  const auto path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  Descriptor file{open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (file.fd < 0) {
    const int error_number = errno;
    if (error_number == ENOENT) return fail(gone(handle, "the exporting process has ended"));
    return fail(system_error("open " + path, error_number)
                    .fix("both processes have to run as the same user in one PID namespace"));
  }
  struct stat info {};
  if (fstat(file.fd, &info) != 0 || info.st_ino != handle.inode ||
      static_cast<std::size_t>(info.st_size) < export_table_bytes) {
    return fail(gone(handle, "the exporting driver is gone"));
  }
  void* table = mmap(nullptr, export_table_bytes, PROT_READ, MAP_SHARED, file.fd, 0);
  if (table == MAP_FAILED) return fail(system_error("map another process's export table", errno));
  auto piece =
      map_piece(handle, file.fd, static_cast<ExportEntry*>(table), static_cast<std::size_t>(info.st_size));
  if (!piece) munmap(table, export_table_bytes);
  return piece;
}

}  // namespace cenote::cuda::emulator
