// The bytes of a session's request and reply, and how a frame is moved; shared by both ends. Not API.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pool/remote/client_driver.h"
#include "runtime/bytes.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::dropin {

/// Of a frame's contents. The answer for a lease of ten thousand devices fits.
inline constexpr std::size_t max_frame = std::size_t{1} << 20U;

void put_error(Writer& out, const Error& error);
/// A field that is not there, or makes no sense, leaves `in` bad().
Error take_error(Reader& in);
void put_workers(Writer& out, const std::vector<remote::WorkerAddress>& workers);
std::vector<remote::WorkerAddress> take_workers(Reader& in);

Bytes encode_workers(const std::vector<remote::WorkerAddress>& workers);
Bytes encode_error(const Error& error);
/// The workers, or the error that was sent. Errors of its own: protocol_error.
Result<std::vector<remote::WorkerAddress>> decode_reply(std::span<const std::byte> reply);

/// Both end at `deadline`; a closed connection is peer_failed, a length above max_frame protocol_error.
Result<void> send_frame(int socket, std::span<const std::byte> frame, Deadline deadline);
Result<Bytes> receive_frame(int socket, Deadline deadline);

/// Frames out of a stream that arrives in pieces; what was read stays, whatever ended the reading.
class FrameBuffer {
 public:
  /// Takes what has arrived, without waiting; false = nothing had. Errors: peer_failed (it closed the
  /// connection), system_error.
  Result<bool> read(int socket);
  /// The next whole frame; nullopt = more has to arrive. Errors: protocol_error (longer than max_frame).
  Result<std::optional<Bytes>> next();

 private:
  Bytes bytes_;
  std::size_t taken_ = 0;  ///< of bytes_, from the front
};

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};
/// "@name" is one in the abstract namespace: it leaves no file behind, however its server ends. Errors:
/// invalid_argument (too long for a unix socket).
Result<SocketAddress> socket_address(const std::string& path);

}  // namespace cenote::pool::dropin
