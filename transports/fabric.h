// Fabric: the transports of one thread, and who is reached over which. The choice is a pure function of the
// two sides' addresses, so both sides choose alike without asking.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transports/transport.h"
#include "transports/ucx/ucx.h"
#include "transports/verbs/verbs.h"

namespace cenote {
class Settings;
}

namespace cenote::transport {

struct FabricOptions {
  std::vector<std::string> transports{"shm", "verbs", "tcp"};  ///< in order of preference
  /// Address where the transports that meet their peers at a socket listen, and which they publish.
  std::string tcp_host = "127.0.0.1";
  VerbsOptions verbs;                                    ///< but for its host
  UcxOptions ucx;                                        ///< likewise
  Clock::duration spin = std::chrono::microseconds(20);  ///< how long wait() polls before it sleeps
  /// What each transport is put into when it is made, under its own name: fault/ for tests. Empty: nothing.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap{};
};
/// What the settings transports, tcp.host, wait.spin, verbs.* and ucx.tls say.
FabricOptions fabric_options(const Settings& settings);

/// How one peer is reached. `transport` lives as long as the Fabric; allocate there what this peer shall
/// reach.
struct Link {
  std::unique_ptr<Endpoint> endpoint;
  Transport* transport = nullptr;
  std::string reason;  ///< "shm: same boot id and namespaces", "tcp: shm refused: other host"
};

/// Threads and blocking as in transport.h.
class Fabric {
 public:
  virtual ~Fabric() = default;
  /// A transport that this machine cannot have (no device, no library) is left out, and every choice() says
  /// so. Errors: invalid_argument (one is named twice), not_supported (an unknown name; none is left: the
  /// cause lists why), and what keeps one from starting that this machine could have.
  static Result<std::unique_ptr<Fabric>> create(const FabricOptions& options);
  /// Everything a peer needs to connect; plain bytes, at most 1 KiB.
  [[nodiscard]] virtual const Bytes& address() const = 0;
  /// Which transport would reach that peer, and why. Errors: not_supported (none does; the cause lists each
  /// refusal).
  [[nodiscard]] virtual Result<std::string> choice(std::span<const std::byte> peer_address) const = 0;
  /// Both sides connect to each other, in any order, with the same `channel`.
  virtual Result<Link> connect(std::span<const std::byte> peer_address, std::string peer_name,
                               std::uint32_t channel, Deadline deadline) = 0;
  [[nodiscard]] virtual std::span<Transport* const> transports() const = 0;
  virtual bool progress() = 0;
  virtual Result<void> wait(Deadline deadline, const CancelFlag* cancel, std::string_view what) = 0;
  /// From any thread: makes wait() return.
  virtual void interrupt() = 0;
};

}  // namespace cenote::transport
