// HostIdentity: which kernel a process runs on and which namespaces it lives in: what decides whether two
// processes can share memory, whatever their host names say. A value.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote {

struct HostIdentity {
  std::string boot_id;  ///< the kernel's, new with every boot, the same in all containers of a host
  std::uint64_t network_space = 0;  ///< inodes of the namespaces; 0 = the kernel has none of that kind
  std::uint64_t ipc_space = 0;
  std::uint64_t mount_space = 0;
  std::uint64_t user_space = 0;
  std::uint64_t pid_space = 0;

  /// Of this process. Errors: system_error (no /proc).
  static Result<HostIdentity> read();

  void pack(Writer& out) const;
  /// Makes `in` bad() when the bytes are no identity.
  static HostIdentity unpack(Reader& in);

  /// "boot 3f2a…, net 4026531840, ipc ..." for logs and `cenote doctor`.
  [[nodiscard]] std::string text() const;
  bool operator==(const HostIdentity&) const = default;
};

}  // namespace cenote
