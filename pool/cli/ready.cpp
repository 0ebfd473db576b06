#include "pool/cli/ready.h"

#include <unistd.h>

#include <cerrno>

#include "runtime/unique_fd.h"

namespace cenote::pool::cli {

Result<void> tell_ready(int fd, const std::string& endpoint) {
  if (fd < 0) return {};
  const UniqueFd owned(fd);
  const auto line = endpoint + "\n";
  if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return fail(system_error("report readiness", errno));
  }
  return {};
}

}  // namespace cenote::pool::cli
