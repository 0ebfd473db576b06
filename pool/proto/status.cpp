#include "pool/proto/status.h"

#include <grpcpp/support/status.h>

#include <utility>

#include "runtime/bytes.h"

namespace cenote::pool {
namespace {

constexpr std::uint32_t kMagic = 0x31524543;  // "CER1": details of somebody else are left alone
constexpr std::size_t kMaxField = 1024;       // details travel as metadata, which gRPC bounds at 8 KiB

struct Pair {
  ErrorCode ours;
  grpc::StatusCode theirs;
};
// The first row of a code is its translation.
constexpr Pair kCodes[] = {
    {ErrorCode::invalid_argument, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::not_supported, grpc::StatusCode::UNIMPLEMENTED},
    {ErrorCode::not_found, grpc::StatusCode::NOT_FOUND},
    {ErrorCode::already_exists, grpc::StatusCode::ALREADY_EXISTS},
    {ErrorCode::permission_denied, grpc::StatusCode::PERMISSION_DENIED},
    {ErrorCode::permission_denied, grpc::StatusCode::UNAUTHENTICATED},
    {ErrorCode::resource_exhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {ErrorCode::deadline_exceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {ErrorCode::cancelled, grpc::StatusCode::CANCELLED},
    {ErrorCode::peer_failed, grpc::StatusCode::UNAVAILABLE},
    {ErrorCode::protocol_error, grpc::StatusCode::DATA_LOSS},
    {ErrorCode::system_error, grpc::StatusCode::ABORTED},
    {ErrorCode::driver_error, grpc::StatusCode::FAILED_PRECONDITION},
    {ErrorCode::internal, grpc::StatusCode::INTERNAL},
};

/// What gRPC says, in words. The first row of the code whose text occurs in gRPC's own is taken.
struct Words {
  grpc::StatusCode code;
  std::string_view text;
  const char *cause, *remedy;
};
constexpr Words kWords[] = {
    {grpc::StatusCode::UNAVAILABLE, "Connection refused", "nothing listens there (connection refused)",
     "start it there, or correct the address"},
    {grpc::StatusCode::UNAVAILABLE, "DNS resolution failed", "no host of that name is known (DNS)",
     "correct the host name, or give the address in numbers"},
    {grpc::StatusCode::UNAVAILABLE, "No route to host", "there is no route to that host",
     "is the machine up, and does a firewall let the port through?"},
    {grpc::StatusCode::UNAVAILABLE, "etwork is unreachable", "there is no network that leads to that host",
     "see the addresses and routes of this machine (ip addr, ip route)"},
    {grpc::StatusCode::UNAVAILABLE, "not in peer certificate",
     "its certificate is of another role or name than the one expected there",
     "correct the address; are both certificates of the same pool?"},
    {grpc::StatusCode::UNAVAILABLE, "ERTIFICATE_VERIFY_FAILED",
     "the TLS handshake failed: its certificate is of another authority, or out of date",
     "are both certificates of the same pool? compare ca.pem in tls.dir on both machines"},
    {grpc::StatusCode::UNAVAILABLE, "certificate verify failed",
     "the TLS handshake failed: its certificate is of another authority, or out of date",
     "are both certificates of the same pool? compare ca.pem in tls.dir on both machines"},
    {grpc::StatusCode::UNAVAILABLE, "andshake", "the TLS handshake failed",
     "is it running there, and are both certificates of the same pool?"},
    {grpc::StatusCode::UNAVAILABLE, "keepalive", "it no longer answers on the open connection",
     "its machine or the way there is down, or the process is stopped"},
    {grpc::StatusCode::UNAVAILABLE, "imed out", "the connection was not made in time",
     "is the machine up, and does a firewall let the port through?"},
    {grpc::StatusCode::UNAVAILABLE, "ocket closed", "it closed the connection",
     "it may have ended or started anew: see its log, and try again"},
    {grpc::StatusCode::UNAVAILABLE, "reset by peer", "it closed the connection",
     "it may have ended or started anew: see its log, and try again"},
    {grpc::StatusCode::UNAVAILABLE, "roken pipe", "it closed the connection",
     "it may have ended or started anew: see its log, and try again"},
    {grpc::StatusCode::UNAVAILABLE, "GOAWAY", "it is ending and takes no more calls",
     "start it anew, or try again in a moment"},
    {grpc::StatusCode::DEADLINE_EXCEEDED, "", "it did not answer in time",
     "is it stopped, overloaded or cut off? see its log"},
    {grpc::StatusCode::CANCELLED, "", "the call was cancelled", ""},
    {grpc::StatusCode::UNIMPLEMENTED, "", "it does not know this call",
     "is that address the right one, and do both sides run the same version?"},
};
constexpr Words kUnknown{grpc::StatusCode::UNKNOWN, "", "gRPC reports",
                         "is it running there, and are both certificates of the same pool?"};

const Words& words_of(const grpc::Status& status) {
  for (const auto& words : kWords) {
    if (words.code == status.error_code() && status.error_message().find(words.text) != std::string::npos)
      return words;
  }
  return kUnknown;
}

grpc::StatusCode translate(ErrorCode code) {
  for (const auto& [ours, theirs] : kCodes) {
    if (ours == code) return theirs;
  }
  return grpc::StatusCode::UNKNOWN;
}

ErrorCode translate(grpc::StatusCode code) {
  for (const auto& [ours, theirs] : kCodes) {
    if (theirs == code) return ours;
  }
  return ErrorCode::internal;
}

std::string_view bounded(std::string_view text) { return text.substr(0, kMaxField); }

bool read_details(const std::string& details, Error& error) {
  Reader in(as_bytes(details));
  if (in.get<std::uint32_t>() != kMagic) return false;
  const auto code = in.get<std::uint8_t>();
  error.stage = in.text();
  error.cause = in.text();
  error.device = in.text();
  error.peer = in.text();
  error.remedy = in.text();
  error.native = in.get<std::int32_t>();
  if (!in.finished() || code > static_cast<std::uint8_t>(ErrorCode::internal)) return false;
  error.code = static_cast<ErrorCode>(code);
  return true;
}

}  // namespace

grpc::Status to_status(const Error& error) {
  Writer out;
  out.put(kMagic).put(static_cast<std::uint8_t>(error.code));
  for (const auto* field : {&error.stage, &error.cause, &error.device, &error.peer, &error.remedy}) {
    out.text(bounded(*field));
  }
  out.put(static_cast<std::int32_t>(error.native));
  return {translate(error.code), std::string(bounded(error.message())), std::string(as_text(out.bytes()))};
}

Error to_error(const grpc::Status& status, std::string stage, std::string peer) {
  Error error;
  if (read_details(status.error_details(), error)) return error;
  const auto& words = words_of(status);
  error = Error{translate(status.error_code()), std::move(stage), words.cause};
  if (&words == &kUnknown) error.cause += ": " + status.error_message();
  error.peer = std::move(peer);
  error.remedy = words.remedy;
  error.native = static_cast<int>(status.error_code());
  return error;
}

}  // namespace cenote::pool
