// The two ends of a test as a command runs them: the client measures and shows, the server takes part, shows
// the same and ends with it.
#pragma once

#include <functional>
#include <string>

#include "perf/tools/report.h"
#include "runtime/tcp_socket.h"
#include "runtime/unique_fd.h"

namespace cenote::perf {

using Print = std::function<Result<void>(std::string_view)>;

struct Request {
  Setup setup;
  Work work;  ///< the client's; the server takes what it is told
  Show show;
};

/// Errors: those of Session, and of the files that are to be written. Cancelled is one too, but for a test
/// that runs for ever.
Result<void> run_client(const Request& request, UniqueFd socket, std::string peer, const CancelFlag& cancel,
                        const Print& print);
Result<void> run_server(const Request& request, UniqueFd socket, std::string peer, const CancelFlag& cancel,
                        const Print& print);

/// Until it stands; who is not there yet is tried again. Errors: deadline_exceeded (with the last cause),
/// cancelled.
Result<UniqueFd> call(const SocketAddress& server, Deadline deadline, const CancelFlag& cancel);

/// A listener for one test. Errors of open: already_exists (the port is in use).
class Listener {
 public:
  static Result<Listener> open(const SocketAddress& address);
  [[nodiscard]] const SocketAddress& address() const { return address_; }
  /// Waits for somebody; a person is the deadline. `peer` becomes its address.
  Result<UniqueFd> accept(std::string& peer, const CancelFlag& cancel) const;

 private:
  Listener(UniqueFd socket, SocketAddress address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  UniqueFd socket_;
  SocketAddress address_;
};

}  // namespace cenote::perf
