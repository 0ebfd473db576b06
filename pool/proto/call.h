// One gRPC call that another thread can end, and a cancel flag too.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "pool/call_gate.h"
#include "runtime/deadline.h"

namespace cenote::pool {

/// What ends a call before its answer.
struct CallEnd {
  CallGate& gate;
  Deadline deadline;
  const CancelFlag* cancel = nullptr;  ///< may be null
  Clock::duration grace{};             ///< how long a call that was cancelled may still be answered
};

/// A stub's asynchronous call as perform() begins it. `stub` and `request` outlive it.
template <class Stub, class Method, class Request>
auto beginning(Stub& stub, Method method, const Request& request) {
  return [&stub, method, &request](grpc::ClientContext& context, grpc::CompletionQueue& queue) {
    return (stub.*method)(&context, request, &queue);
  };
}

/// Begins with begin(context, queue), which gives the call's reader, and waits for the answer.
template <class Reply, class Begin>
grpc::Status perform(const CallEnd& ends, grpc::ClientContext& context, Reply& reply, const Begin& begin) {
  const auto wall = [](Clock::duration span) {
    return std::chrono::system_clock::now() +
           std::chrono::duration_cast<std::chrono::system_clock::duration>(span);
  };
  context.set_deadline(wall(std::min<Clock::duration>(ends.deadline.left(), std::chrono::hours(1))));
  const CallGate::Call call(ends.gate, [&context] { context.TryCancel(); });
  if (!call) return {grpc::StatusCode::CANCELLED, "the caller is going away"};
  grpc::CompletionQueue queue;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader = begin(context, queue);
  reader->Finish(&reply, &status, &reply);
  void* tag = nullptr;
  bool ok = false, answered = false;
  while (!answered && ends.cancel != nullptr && !ends.cancel->raised()) {
    answered = queue.AsyncNext(&tag, &ok, wall(std::chrono::milliseconds(50))) !=
               grpc::CompletionQueue::NextStatus::TIMEOUT;
  }
  if (!answered && ends.cancel != nullptr) {
    answered = queue.AsyncNext(&tag, &ok, wall(ends.grace)) != grpc::CompletionQueue::NextStatus::TIMEOUT;
    if (!answered) context.TryCancel();
  }
  if (!answered) queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

}  // namespace cenote::pool
