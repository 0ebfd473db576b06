// BrokerServer: a broker on its state folder and its port, until it is stopped.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "pool/broker/messages.h"
#include "pool/tls/credentials.h"
#include "runtime/result.h"

namespace cenote {
class Logger;
}

namespace cenote::pool {

struct BrokerServerOptions {
  std::string listen = "127.0.0.1:4700";  ///< port 0 = a free one
  std::filesystem::path state_dir;        ///< made if missing, mode 0700: broker.db, broker.key
  tls::Files certificate;                 ///< of role broker
  BrokerPolicy policy{};
  std::string metrics{};  ///< host:port that Prometheus asks; "" = none
};

class BrokerServer {
 public:
  /// `log` outlives the server. Errors: already_exists (another broker on the store, named by its pid; port
  /// in use), protocol_error (damaged or foreign store), permission_denied and not_found (certificate),
  /// system_error.
  static Result<std::unique_ptr<BrokerServer>> start(const BrokerServerOptions& options, Logger& log);
  /// Stops as stop() does.
  ~BrokerServer();
  BrokerServer(const BrokerServer&) = delete;
  BrokerServer& operator=(const BrokerServer&) = delete;

  /// Takes no new calls, lets those in flight end for at most a second, and returns. Idempotent. Leases go
  /// on: the next broker on this folder finds them.
  void stop();

  [[nodiscard]] int port() const;
  /// "host:port", with the port that it got.
  [[nodiscard]] const std::string& endpoint() const;
  /// Where the metrics are, with the port that they got; "" = nowhere.
  [[nodiscard]] std::string metrics_address() const;

 private:
  struct Parts;
  explicit BrokerServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cenote::pool
