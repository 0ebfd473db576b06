// What an agent and its worker say to each other over their socket pair (SOCK_SEQPACKET: one message a
// packet). Agent: one setup, later perhaps `end`. Worker: one `ready` or `failed`, then loads, then `done`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pool/agent/worker_host.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

inline constexpr std::size_t kMaxWorkerMessage = std::size_t{64} * 1024;
inline constexpr int kWorkerFd = 3;  ///< the worker's end of the socket pair

/// Exit codes of a worker that ended by itself; anything else (and any signal) is a crash.
enum WorkerExitCode : int { worker_session_over = 0, worker_setup_failed = 10 };

Bytes encode_setup(const WorkerSetup& setup);
Result<WorkerSetup> decode_setup(std::span<const std::byte> message);

enum class WorkerSays : std::uint8_t { ready = 1, failed = 2, load = 3, done = 4 };

struct WorkerMessage {
  WorkerSays kind = WorkerSays::ready;
  Bytes address{};               ///< ready
  std::optional<Error> error{};  ///< failed; done, when the session ended by more than the client's leave
  std::vector<DeviceUse> use{};  ///< load
};

Bytes encode_message(const WorkerMessage& message);
Result<WorkerMessage> decode_message(std::span<const std::byte> message);

/// One packet. `receive_packet`: empty = the other side is gone.
Result<void> send_packet(int fd, std::span<const std::byte> packet);
Result<Bytes> receive_packet(int fd);

}  // namespace cenote::pool::agent
