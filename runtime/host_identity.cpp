#include "runtime/host_identity.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>

namespace cenote {
namespace {

constexpr const char* boot_id_path = "/proc/sys/kernel/random/boot_id";
constexpr std::size_t boot_id_length = 36;  // a UUID

Result<std::uint64_t> namespace_inode(const char* kind) {
  const auto path = fmt::format("/proc/self/ns/{}", kind);
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_ino;
  if (errno == ENOENT) return 0;  // a kernel without that kind
  return fail(system_error("read " + path, errno));
}

}  // namespace

Result<HostIdentity> HostIdentity::read() {
  HostIdentity host;
  std::ifstream file(boot_id_path);
  if (!std::getline(file, host.boot_id) || host.boot_id.size() != boot_id_length)
    return fail(ErrorCode::system_error, std::string("read ") + boot_id_path, "it holds no boot id");
  CENOTE_ASSIGN(host.network_space, namespace_inode("net"));
  CENOTE_ASSIGN(host.ipc_space, namespace_inode("ipc"));
  CENOTE_ASSIGN(host.mount_space, namespace_inode("mnt"));
  CENOTE_ASSIGN(host.user_space, namespace_inode("user"));
  CENOTE_ASSIGN(host.pid_space, namespace_inode("pid"));
  return host;
}

void HostIdentity::pack(Writer& out) const {
  out.text(boot_id).put(network_space).put(ipc_space).put(mount_space).put(user_space).put(pid_space);
}

HostIdentity HostIdentity::unpack(Reader& in) {
  HostIdentity host;
  // The length is checked before anything is copied.
  if (const auto boot = in.blob(); boot.size() == boot_id_length) {
    host.boot_id = as_text(boot);
  } else {
    in.raw(in.left() + 1);
  }
  for (auto* space :
       {&host.network_space, &host.ipc_space, &host.mount_space, &host.user_space, &host.pid_space})
    *space = in.get<std::uint64_t>();
  return in.bad() ? HostIdentity{} : host;
}

std::string HostIdentity::text() const {
  return fmt::format("boot {} net {} ipc {} mnt {} user {} pid {}", boot_id, network_space, ipc_space,
                     mount_space, user_space, pid_space);
}

}  // namespace cenote
