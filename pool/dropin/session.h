// A session: how a program without gRPC reaches leased GPUs. `cenote lease -- CMD` holds the lease and serves
// one unix socket; the drop-ins inside CMD connect to it, name their fabric's address, and are told where the
// lease's workers listen. The lease's key never leaves the serving process.
//
// Frames on the socket: u32 length (at most 1 MiB), then the bytes. One request and one reply a connection.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "pool/remote/client_driver.h"
#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::dropin {

/// What the server asks of its owner for each program that connects: sessions on every worker of the lease.
/// Ends soon after `ended` is raised: the server is being destroyed.
using OpenWorkers = std::function<Result<std::vector<remote::WorkerAddress>>(
    std::span<const std::byte> client_fabric_address, const CancelFlag& ended)>;

/// Serves until destroyed, on a thread of its own; destroying it waits for no client. Only processes of the
/// same user are answered. A client that sends nothing, or nonsense, is dropped after a second and cannot
/// hold up the others for longer.
class SessionServer {
 public:
  /// `path`: of the socket, in a private folder; or "@name", which leaves no file. Errors: system_error,
  /// already_exists.
  static Result<std::unique_ptr<SessionServer>> start(const std::string& path, OpenWorkers open);
  ~SessionServer();
  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;

 private:
  SessionServer(std::string path, UniqueFd listener, UniqueFd stop, OpenWorkers open);
  void serve();
  void answer(int connection);
  bool set_current(int connection);

  std::string path_;
  UniqueFd listener_;
  UniqueFd stop_;  ///< eventfd: readable = end
  OpenWorkers open_;
  CancelFlag ended_;
  std::mutex mutex_;
  int current_ = -1;  ///< the connection being answered
  std::thread thread_;
};

/// Opens the session at `path` and connects to its workers, which count as lost after `worker_timeout` of
/// silence. Errors: not_found (nobody serves there), what the server's lease refused, what connecting to a
/// worker met.
Result<std::unique_ptr<remote::RemoteDriver>> open_session(const std::string& path,
                                                           const transport::FabricOptions& fabric,
                                                           Deadline deadline, Clock::duration worker_timeout);

}  // namespace cenote::pool::dropin
