// gRPC with the pool's rules: TLS with a certificate on both sides, the peer's role and name checked, bounded
// messages, keepalive that finds a dead peer, no shared ports.
#pragma once

#include <memory>
#include <string>

#include "pool/tls/credentials.h"
#include "runtime/result.h"

namespace grpc {
class Channel;
class Server;
class ServerBuilder;
class ServerContext;
class Service;
}  // namespace grpc

namespace cenote::pool {

/// The largest message either side accepts: a pool of 10,000 GPUs lists in about a tenth of it.
inline constexpr int kMaxMessageBytes = 16 << 20;

/// A channel to `endpoint` ("host:port") that accepts only `peer` there: a broker (of any name), or the agent
/// of that name. Connects on first use.
std::shared_ptr<grpc::Channel> connect(const std::string& endpoint, const tls::Credentials& self,
                                       const tls::Identity& peer);

/// A running server and the port it got.
struct Listening {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  Listening();
  Listening(Listening&&) noexcept;
  Listening& operator=(Listening&&) noexcept;
  ~Listening();
};

/// Serves `service` on `endpoint`; port 0 takes a free one. Errors: already_exists when the port is in use
/// (also by another of ours), system_error with the exact errno otherwise. `service` outlives the server.
Result<Listening> listen(const std::string& endpoint, const tls::Credentials& self, grpc::Service& service);

/// Turns off gRPC's own lines on standard error, for this process: our errors say the same and more. For the
/// main function of a program, never for a library.
void quiet_grpc();

/// Who calls, from the certificate that TLS verified. Errors: permission_denied.
Result<tls::Identity> caller(const grpc::ServerContext& context);

/// caller(), and it must have `role`.
Result<tls::Identity> caller_as(const grpc::ServerContext& context, tls::Role role);

}  // namespace cenote::pool
