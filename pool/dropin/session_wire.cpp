#include "pool/dropin/session_wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
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

}  // namespace

void put_error(Writer& out, const Error& error) {
  out.put(error.code).put(static_cast<std::int32_t>(error.native));
  out.text(error.stage).text(error.cause).text(error.device).text(error.peer).text(error.remedy);
}

Error take_error(Reader& in) {
  Error error;
  error.code = in.get<ErrorCode>();
  if (error.code > ErrorCode::internal) error.code = ErrorCode::internal;
  error.native = in.get<std::int32_t>();
  error.stage = in.text();
  error.cause = in.text();
  error.device = in.text();
  error.peer = in.text();
  error.remedy = in.text();
  return error;
}

void put_workers(Writer& out, const std::vector<remote::WorkerAddress>& workers) {
  out.put(static_cast<std::uint32_t>(workers.size()));
  for (const auto& worker : workers) {
    out.blob(worker.fabric_address).put(worker.channel).text(worker.peer);
    out.put(static_cast<std::uint32_t>(worker.device_names.size()));
    for (const auto& name : worker.device_names) out.text(name);
  }
}

std::vector<remote::WorkerAddress> take_workers(Reader& in) {
  std::vector<remote::WorkerAddress> workers;
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
  return workers;
}

Bytes encode_workers(const std::vector<remote::WorkerAddress>& workers) {
  Writer out;
  out.put(ReplyKind::workers);
  put_workers(out, workers);
  return out.take();
}

Bytes encode_error(const Error& error) {
  Writer out;
  out.put(ReplyKind::error);
  put_error(out, error);
  return out.take();
}

Result<std::vector<remote::WorkerAddress>> decode_reply(std::span<const std::byte> reply) {
  Reader in(reply);
  const auto kind = in.get<ReplyKind>();
  if (kind == ReplyKind::error) {
    auto error = take_error(in);
    if (in.finished()) return fail(std::move(error));
  }
  if (kind == ReplyKind::workers) {
    auto workers = take_workers(in);
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

Result<bool> FrameBuffer::read(int socket) {
  constexpr std::size_t chunk = std::size_t{1} << 16U;
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  const auto had = bytes_.size();
  bytes_.resize(had + chunk);
  const auto got = ::recv(socket, bytes_.data() + had, chunk, MSG_DONTWAIT);
  const int cause = errno;
  bytes_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got > 0) return true;
  if (got == 0)
    return fail(ErrorCode::peer_failed, std::string(stage), "the other side closed the connection");
  if (cause == EAGAIN || cause == EINTR) return false;
  return fail(system_error(std::string(stage), cause));
}

Result<std::optional<Bytes>> FrameBuffer::next() {
  std::uint32_t length = 0;
  const auto waiting = std::span<const std::byte>(bytes_).subspan(taken_);
  if (waiting.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, waiting.data(), sizeof length);
  if (length > max_frame)
    return fail(ErrorCode::protocol_error, std::string(stage),
                "a frame claims " + std::to_string(length) + " bytes");
  if (waiting.size() - sizeof length < length) return std::nullopt;
  const auto contents = waiting.subspan(sizeof length, length);
  Bytes frame(contents.begin(), contents.end());
  taken_ += sizeof length + length;
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
