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
  error = Error{translate(status.error_code()), std::move(stage), status.error_message()};
  error.peer = std::move(peer);
  error.native = static_cast<int>(status.error_code());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    error.remedy = "is it running there, and are both certificates of the same pool?";
  }
  return error;
}

}  // namespace cenote::pool
