// LocalEnd: the server of `cenote perf TOOL --local`, a process of its own that dies with this one.
#pragma once

#include <string>
#include <vector>

#include "pool/cli/child_process.h"
#include "pool/cli/cli.h"
#include "runtime/unique_fd.h"

namespace cenote::perf {

class LocalEnd {
 public:
  /// This program again, with the same settings and `words` after the tool's name. Errors: system_error.
  static Result<LocalEnd> start(const pool::cli::Globals& globals, const std::string& tool,
                                const std::vector<std::string>& words);
  /// Its socket; once.
  UniqueFd take_socket() { return std::move(socket_); }
  [[nodiscard]] std::string name() const;
  /// After success: waits for its end. Errors: peer_failed (it ended badly, or does not).
  Result<void> finish();
  /// After `error`: ends it, and says how it had ended where that is the cause.
  Error lost(Error error);

 private:
  LocalEnd() = default;
  pool::cli::ChildProcess child_;
  UniqueFd socket_;
};

}  // namespace cenote::perf
