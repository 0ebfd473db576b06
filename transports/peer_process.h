// PeerProcess: the process of a peer on this host, watched by the kernel's own handle of it (pidfd). A
// connection ends with its process only when nobody else holds it; a child of fork() does.
#pragma once

#include <cstdint>

#include "runtime/deadline.h"
#include "runtime/host_identity.h"
#include "runtime/unique_fd.h"

namespace cenote::transport {

/// Names one process of a host for ever: numbers are given again, with another start.
struct ProcessMark {
  std::int32_t number = 0;    ///< in its pid namespace
  std::uint64_t started = 0;  ///< clock ticks since boot

  /// This one. Errors: system_error (no /proc).
  static Result<ProcessMark> own();
  bool operator==(const ProcessMark&) const = default;
};

class PeerProcess {
 public:
  /// Watches nothing where it cannot: another host or pid namespace, this very process, a kernel without
  /// pidfd, a number that another process has by now.
  PeerProcess() = default;
  PeerProcess(const HostIdentity& here, const HostIdentity& there, const ProcessMark& mark);

  /// Whether it ended a while ago (300 ms): what it had sent has come since, and the end of its connection
  /// too, unless somebody else holds that. To be asked often; looks ten times a second, and after true
  /// watches no more.
  bool ended_long_ago();
  /// Something has come from it: the while begins anew.
  void spoke() { seen_ended_ = {}; }

  /// What an endpoint then fails with.
  static constexpr const char* ended_held =
      "its process has ended; a child that it forked still holds the connection";

 private:
  UniqueFd handle_;
  Clock::time_point next_look_{};
  Clock::time_point seen_ended_{};
};

}  // namespace cenote::transport
