#include "transports/shm/mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

namespace cenote::transport::shm {
namespace {

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Result<Mapping> map(int fd, std::size_t bytes, int protection) {
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return fail(system_error("map " + std::to_string(bytes) + " shared bytes", errno));
  return Mapping(base, bytes);
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (base_ != nullptr) ::munmap(base_, size_);
    base_ = std::exchange(other.base_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

Result<SharedMemory> create(const char* name, std::size_t bytes, PeerAccess access) {
  const std::string stage = "allocate " + std::to_string(bytes) + " shared bytes";
  SharedMemory memory;
  memory.fd.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd) return fail(system_error(stage, errno));
  if (bytes > static_cast<std::size_t>(INT64_MAX) ||
      ::ftruncate(memory.fd.get(), static_cast<off_t>(bytes)) != 0)
    return fail(system_error(stage, bytes > static_cast<std::size_t>(INT64_MAX) ? EFBIG : errno));
  CENOTE_ASSIGN(memory.mapping, map(memory.fd.get(), bytes, PROT_READ | PROT_WRITE));
  const int seals = access == PeerAccess::read_only ? size_seals | F_SEAL_FUTURE_WRITE : size_seals;
  if (::fcntl(memory.fd.get(), F_ADD_SEALS, seals) != 0)
    return fail(system_error("seal shared memory", errno));
  return memory;
}

Result<Mapping> import(const UniqueFd& fd, std::size_t bytes, PeerAccess access) {
  const char* stage = "map a peer's memory";
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return fail(ErrorCode::protocol_error, stage, "the peer sent a descriptor that is no memfd");
  if ((seals & size_seals) != size_seals)
    return fail(ErrorCode::protocol_error, stage,
                "the peer sent memory that is not sealed against a change of size");
  constexpr int write_seals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
  const bool writable = (::fcntl(fd.get(), F_GETFL) & O_ACCMODE) == O_RDWR && (seals & write_seals) == 0;
  if (access == PeerAccess::read_write && !writable)
    return fail(ErrorCode::protocol_error, stage, "the peer sent memory that cannot be written to");
  struct statfs kind {};
  if (::fstatfs(fd.get(), &kind) != 0) return fail(system_error(stage, errno));
  if (kind.f_type != TMPFS_MAGIC)  // huge pages may be missing when they are touched
    return fail(ErrorCode::protocol_error, stage,
                "the peer sent memory of another kind than the usual memfd");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return fail(system_error(stage, errno));
  if (static_cast<std::size_t>(status.st_size) != bytes)
    return fail(
        ErrorCode::protocol_error, stage,
        "the peer sent " + std::to_string(status.st_size) + " bytes instead of " + std::to_string(bytes));
  return map(fd.get(), bytes, access == PeerAccess::read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}

}  // namespace cenote::transport::shm
