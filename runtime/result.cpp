#include "runtime/result.h"

#include <system_error>

namespace cenote {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::not_supported:
      return "not supported";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::already_exists:
      return "already exists";
    case ErrorCode::permission_denied:
      return "permission denied";
    case ErrorCode::resource_exhausted:
      return "resource exhausted";
    case ErrorCode::deadline_exceeded:
      return "deadline exceeded";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::peer_failed:
      return "peer failed";
    case ErrorCode::protocol_error:
      return "protocol error";
    case ErrorCode::system_error:
      return "system error";
    case ErrorCode::driver_error:
      return "driver error";
    case ErrorCode::internal:
      return "internal error";
  }
  return "unknown error";
}

std::string Error::message() const {
  std::string text = stage;
  if (!device.empty()) text += " on " + device;
  if (!peer.empty()) text += " with " + peer;
  text += " failed: " + cause;
  if (!remedy.empty()) text += "\n  " + remedy;
  return text;
}

Error system_error(std::string stage, int error_number) {
  Error error{ErrorCode::system_error, std::move(stage), std::generic_category().message(error_number)};
  error.native = error_number;
  return error;
}

}  // namespace cenote
