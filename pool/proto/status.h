// Error and grpc::Status, both ways: nothing of an Error is lost between two of our processes, and what gRPC
// itself reports becomes an Error with its exact cause.
#pragma once

#include <string>

#include "runtime/result.h"

namespace grpc {
class Status;
}

namespace cenote::pool {

/// Code and message for any gRPC client, the whole Error in the details for ours.
grpc::Status to_status(const Error& error);

/// The Error of a failed status. What the other process sent keeps its own stage; what gRPC reported (no
/// connection, deadline, cancelled) gets `stage` and `peer`, gRPC's code in `native`, the cause in words and
/// what to do about it. gRPC's own text is kept only where it is none that is known here.
Error to_error(const grpc::Status& status, std::string stage, std::string peer);

}  // namespace cenote::pool
