// Starts the helper of libcenote-pool: `cenote session`, a process of its own with gRPC, certificates and
// keys in it. It shares one socket pair with the program and nothing else: standard input, output and every
// other descriptor stay the program's, a Ctrl-C at the program's terminal does not reach it, and it is
// nobody's child, so that the program need not reap it.
#pragma once

#include <sys/types.h>

#include <string>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::dropin {

/// The `cenote` program: `named`, or where that is empty the one installed with the library that this code is
/// part of (../bin or ../../bin from the library's folder). Errors: not_found (what was looked for, and what
/// to do).
Result<std::string> find_helper(const std::string& named);

/// A helper that is starting. Not thread-safe. The destructor ends and reaps what has not become a helper.
class StartedHelper {
 public:
  /// Errors: system_error (it cannot be executed, no descriptors).
  static Result<StartedHelper> start(const std::string& program);
  StartedHelper(StartedHelper&& other) noexcept;
  StartedHelper& operator=(StartedHelper&&) = delete;
  ~StartedHelper();

  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] UniqueFd take_socket() { return std::move(socket_); }
  /// What the helper writes to standard error: readable without waiting, "" for nothing.
  [[nodiscard]] UniqueFd take_words() { return std::move(words_); }
  /// Waits for the starter to leave the helper behind. Errors: peer_failed (it ended otherwise: its last
  /// words), deadline_exceeded.
  Result<void> finish(Deadline deadline);

 private:
  StartedHelper() = default;
  std::string program_;
  UniqueFd socket_, words_, pidfd_;
  pid_t pid_ = -1;  ///< of the starter; -1 = reaped
};

/// What is there to be read, as one line, at most 500 bytes.
std::string last_words(int fd);

}  // namespace cenote::pool::dropin
