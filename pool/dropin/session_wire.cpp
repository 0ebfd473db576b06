#include "pool/dropin/session_wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace cenote::pool::dropin {
namespace {

constexpr std::string_view stage = "session socket";
enum class ReplyKind : std::uint8_t { workers = 1, error = 2 };

Result<void> wait_for(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  while (true) {
    const int ready = ::poll(&entry, 1, deadline.poll_ms());
    if (ready > 0) return {};
    if (ready == 0 && deadline.passed())
      return fail(ErrorCode::deadline_exceeded, std::string(stage), "no answer in time");
    if (ready < 0 && errno != EINTR) return fail(system_error(std::string(stage), errno));
  }
}

Result<void> move(int socket, std::byte* bytes, std::size_t count, bool sending, Deadline deadline) {
  std::size_t done = 0;
  while (done < count) {
    CENOTE_TRY(wait_for(socket, sending ? POLLOUT : POLLIN, deadline));
    const auto moved = sending ? ::send(socket, bytes + done, count - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                               : ::recv(socket, bytes + done, count - done, MSG_DONTWAIT);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
    } else if (moved == 0) {
      return fail(ErrorCode::peer_failed, std::string(stage), "the other side closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return fail(system_error(std::string(stage), errno));
    }
  }
  return {};
}

Error read_error(Reader& in) {
  Error error;
  error.code = in.get<ErrorCode>();
  error.stage = in.text();
  error.cause = in.text();
  error.device = in.text();
  error.peer = in.text();
  error.remedy = in.text();
  error.native = in.get<std::int32_t>();
  if (error.code > ErrorCode::internal) error.code = ErrorCode::internal;
  return error;
}

}  // namespace

Bytes encode_workers(const std::vector<remote::WorkerAddress>& workers) {
  Writer out;
  out.put(ReplyKind::workers).put(static_cast<std::uint32_t>(workers.size()));
  for (const auto& worker : workers) {
    out.blob(worker.fabric_address).put(worker.channel).text(worker.peer);
    out.put(static_cast<std::uint32_t>(worker.device_names.size()));
    for (const auto& name : worker.device_names) out.text(name);
  }
  return out.take();
}

Bytes encode_error(const Error& error) {
  Writer out;
  out.put(ReplyKind::error)
      .put(error.code)
      .text(error.stage)
      .text(error.cause)
      .text(error.device)
      .text(error.peer);
  return out.text(error.remedy).put(static_cast<std::int32_t>(error.native)).take();
}

Result<std::vector<remote::WorkerAddress>> decode_reply(std::span<const std::byte> reply) {
  Reader in(reply);
  const auto kind = in.get<ReplyKind>();
  if (kind == ReplyKind::error) {
    auto error = read_error(in);
    if (in.finished()) return fail(std::move(error));
  }
  std::vector<remote::WorkerAddress> workers;
  if (kind == ReplyKind::workers) {
    // Each worker takes at least a few bytes, so a lying count runs out of input, not of memory.
    for (auto left = in.get<std::uint32_t>(); left > 0 && !in.bad(); --left) {
      remote::WorkerAddress worker;
      const auto address = in.blob();
      worker.fabric_address.assign(address.begin(), address.end());
      worker.channel = in.get<std::uint32_t>();
      worker.peer = in.text();
      for (auto names = in.get<std::uint32_t>(); names > 0 && !in.bad(); --names)
        worker.device_names.push_back(in.text());
      workers.push_back(std::move(worker));
    }
    if (in.finished()) return workers;
  }
  return fail(ErrorCode::protocol_error, "read the session's reply",
              "malformed reply of " + std::to_string(reply.size()) + " bytes");
}

Result<void> send_frame(int socket, std::span<const std::byte> frame, Deadline deadline) {
  if (frame.size() > max_frame)
    return fail(ErrorCode::invalid_argument, std::string(stage), "frame too long");
  Writer out;
  out.blob(frame);
  auto bytes = out.take();
  return move(socket, bytes.data(), bytes.size(), true, deadline);
}

Result<Bytes> receive_frame(int socket, Deadline deadline) {
  std::uint32_t length = 0;
  CENOTE_TRY(move(socket, reinterpret_cast<std::byte*>(&length), sizeof length, false, deadline));
  if (length > max_frame)
    return fail(ErrorCode::protocol_error, std::string(stage),
                "a frame claims " + std::to_string(length) + " bytes");
  Bytes frame(length);
  CENOTE_TRY(move(socket, frame.data(), frame.size(), false, deadline));
  return frame;
}

Result<SocketAddress> socket_address(const std::string& path) {
  SocketAddress result;
  result.address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof result.address.sun_path)
    return fail(ErrorCode::invalid_argument, std::string(stage),
                "'" + path + "' is empty or too long for a unix socket");
  std::memcpy(result.address.sun_path, path.c_str(), path.size());
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (path.front() == '@') {
    result.address.sun_path[0] = '\0';  // the rest, without a terminator, is the name
  } else {
    ++result.size;
  }
  return result;
}

}  // namespace cenote::pool::dropin
