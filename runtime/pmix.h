// Pmix: a connection to the PMIx server that started this process (mpirun's, or srun's with --mpi=pmix), by
// libpmix.so.2, opened at run time. One thread at a time. Keep it as long as the process has use for it: what
// a server knows of a process that left and came back differs between servers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::launcher {

struct PmixApi;

class Pmix {
 public:
  /// Waits for the server, which runs on this machine. A process may have several, and an MPI library of its
  /// own beside them: PMIx counts. Errors: not_supported (no library, with the package that brings it),
  /// system_error (no server).
  static Result<std::unique_ptr<Pmix>> open(const char* library = "libpmix.so.2");
  /// Tells the server that it is over.
  ~Pmix();
  Pmix(const Pmix&) = delete;
  Pmix& operator=(const Pmix&) = delete;

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::string job() const;
  /// Processes of this job. Errors: as fetch.
  [[nodiscard]] Result<std::uint32_t> size(Deadline deadline) const;
  /// Ranks of this machine, "0,2,4". Errors: as fetch.
  [[nodiscard]] Result<std::string> local_peers(Deadline deadline) const;

  /// For every process of the job, until the job ends.
  Result<void> publish(const std::string& key, std::string text);
  /// What `rank` has published; waits until it has. Errors: deadline_exceeded, system_error (PMIx's text).
  [[nodiscard]] Result<std::string> fetch(std::uint32_t rank, const std::string& key,
                                          Deadline deadline) const;

 private:
  explicit Pmix(std::unique_ptr<PmixApi> api);
  std::unique_ptr<PmixApi> api_;
};

}  // namespace cenote::launcher
