#include "pool/proto/channel.h"

#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cenote::pool {
namespace {

constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int kConnectMs = 5'000;
constexpr int kReconnectMostMs = 1'000;  // a broker that comes back is found within a second

std::pair<std::string, std::string> split(const std::string& endpoint) {
  const auto colon = endpoint.rfind(':');
  if (colon == std::string::npos) return {endpoint, ""};
  auto host = endpoint.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, endpoint.substr(colon + 1)};
}

/// Binds `endpoint` once by hand: gRPC would only log why it cannot, and not return it.
Result<void> check_bindable(const std::string& endpoint) {
  const auto stage = "listen on " + endpoint;
  const auto [host, port] = split(endpoint);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); failed != 0) {
    return fail(
        Error{ErrorCode::invalid_argument, stage, ::gai_strerror(failed)}.fix("give it as host:port"));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const auto* address = found; address != nullptr; address = address->ai_next) {
    const int probe = ::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (probe < 0) return fail(system_error(stage, errno));
    const int yes = 1;
    ::setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const bool refused = ::bind(probe, address->ai_addr, address->ai_addrlen) != 0 || ::listen(probe, 1) != 0;
    const int cause = errno;
    ::close(probe);
    if (!refused) continue;
    auto error = system_error(stage, cause);
    if (cause == EADDRINUSE) {
      error.code = ErrorCode::already_exists;
      error.remedy = "stop what listens there (ss -ltnp shows it), or choose another port";
    }
    return fail(std::move(error));
  }
  return {};
}

}  // namespace

Listening::Listening() = default;
Listening::Listening(Listening&&) noexcept = default;
Listening& Listening::operator=(Listening&&) noexcept = default;
Listening::~Listening() = default;

std::shared_ptr<grpc::Channel> connect(const std::string& endpoint, const tls::Credentials& self,
                                       const tls::Identity& peer) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = self.authority;
  options.pem_private_key = self.key;
  options.pem_cert_chain = self.certificate;
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(peer.dns_name());
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name this is how long one attempt may take, handshake included: not a figure to be short
  // with.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMostMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                   1);  // two identities in one process share no connection
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint, grpc::SslCredentials(options), arguments);
}

Result<Listening> listen(const std::string& endpoint, const tls::Credentials& self, grpc::Service& service) {
  CENOTE_TRY(check_bindable(endpoint));
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = self.authority;
  options.pem_key_cert_pairs.push_back({self.key, self.certificate});
  Listening listening;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(endpoint, grpc::SslServerCredentials(options), &listening.port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveMs / 2);
  listening.server = builder.BuildAndStart();
  if (!listening.server || listening.port == 0) {
    CENOTE_TRY(check_bindable(endpoint));  // taken between the two
    return fail(ErrorCode::internal, "listen on " + endpoint,
                "gRPC refused, though the address can be bound");
  }
  return listening;
}

void quiet_grpc() { gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1)); }

Result<tls::Identity> caller(const grpc::ServerContext& context) {
  const auto authenticated = context.auth_context();
  const auto certificates = authenticated
                                ? authenticated->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)
                                : std::vector<grpc::string_ref>();
  if (certificates.empty() || !authenticated->IsPeerAuthenticated()) {
    return fail(ErrorCode::permission_denied, "identify the caller", "it showed no certificate");
  }
  return tls::identity_of(std::string_view(certificates.front().data(), certificates.front().size()));
}

Result<tls::Identity> caller_as(const grpc::ServerContext& context, tls::Role role) {
  CENOTE_ASSIGN(auto identity, caller(context));
  if (identity.role != role) {
    return fail(Error{ErrorCode::permission_denied, "authorise the call",
                      "only a certificate of the role " + std::string(tls::to_string(role)) +
                          " may do this, this one is of " + identity.text()});
  }
  return identity;
}

}  // namespace cenote::pool
