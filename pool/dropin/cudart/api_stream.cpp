// Streams and events.
#include <memory>
#include <utility>

#include "pool/dropin/cudart/runtime.h"

using namespace cenote;
using namespace cenote::cudart;
using cuda::Event;
using cuda::Stream;

namespace {

const Stream per_thread_stream = reinterpret_cast<Stream>(2);  // CU_STREAM_PER_THREAD
Stream or_per_thread(Stream stream) { return stream == nullptr ? per_thread_stream : stream; }

using StreamCallback = void (*)(Stream, int, void*);
struct CallbackArgs {
  Stream stream;
  StreamCallback callback;
  void* user;
};

void call_back(void* raw) {
  const std::unique_ptr<CallbackArgs> args(static_cast<CallbackArgs*>(raw));
  args->callback(args->stream, success, args->user);
}

}  // namespace

CENOTE_RT int cudaStreamCreateWithFlags(Stream* stream, unsigned flags) {
  if (stream == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().stream_create(stream, flags));
}
CENOTE_RT int cudaStreamCreate(Stream* stream) { return cudaStreamCreateWithFlags(stream, 0); }
CENOTE_RT int cudaStreamCreateWithPriority(Stream* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
CENOTE_RT int cudaStreamDestroy(Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().stream_destroy(stream));
}
CENOTE_RT int cudaStreamSynchronize(Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().stream_synchronize(stream));
}
CENOTE_RT int cudaStreamSynchronize_ptsz(Stream stream) {
  return cudaStreamSynchronize(or_per_thread(stream));
}
CENOTE_RT int cudaStreamQuery(Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  const auto status = Runtime::get().driver().stream_query(stream);
  // not ready is an answer, not an error to remember
  return status == cuda::Status::not_ready ? static_cast<int>(status) : remember(status);
}
CENOTE_RT int cudaStreamQuery_ptsz(Stream stream) { return cudaStreamQuery(or_per_thread(stream)); }
CENOTE_RT int cudaStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().stream_wait_event(stream, event, flags));
}
CENOTE_RT int cudaStreamWaitEvent_ptsz(Stream stream, Event event, unsigned flags) {
  return cudaStreamWaitEvent(or_per_thread(stream), event, flags);
}
CENOTE_RT int cudaLaunchHostFunc(Stream stream, cuda::HostFn function, void* user) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().launch_host_func(stream, function, user));
}
CENOTE_RT int cudaLaunchHostFunc_ptsz(Stream stream, cuda::HostFn function, void* user) {
  return cudaLaunchHostFunc(or_per_thread(stream), function, user);
}
CENOTE_RT int cudaStreamAddCallback(Stream stream, StreamCallback callback, void* user, unsigned flags) {
  if (callback == nullptr || flags != 0) return remember(invalid_value);
  auto args = std::make_unique<CallbackArgs>(CallbackArgs{stream, callback, user});
  const int error = cudaLaunchHostFunc(stream, call_back, args.get());
  if (error == success) static_cast<void>(args.release());
  return error;
}

CENOTE_RT int cudaEventCreateWithFlags(Event* event, unsigned flags) {
  if (event == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().event_create(event, flags));
}
CENOTE_RT int cudaEventCreate(Event* event) { return cudaEventCreateWithFlags(event, 0); }
CENOTE_RT int cudaEventDestroy(Event event) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().event_destroy(event));
}
CENOTE_RT int cudaEventRecord(Event event, Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().event_record(event, stream));
}
CENOTE_RT int cudaEventRecord_ptsz(Event event, Stream stream) {
  return cudaEventRecord(event, or_per_thread(stream));
}
CENOTE_RT int cudaEventRecordWithFlags(Event event, Stream stream, unsigned flags) {
  return flags == 0 ? cudaEventRecord(event, stream) : remember(not_supported);
}
CENOTE_RT int cudaEventQuery(Event event) {
  CENOTE_RT_TRY(Runtime::get().enter());
  const auto status = Runtime::get().driver().event_query(event);
  return status == cuda::Status::not_ready ? static_cast<int>(status) : remember(status);
}
CENOTE_RT int cudaEventSynchronize(Event event) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().event_synchronize(event));
}
CENOTE_RT int cudaEventElapsedTime(float* ms, Event start, Event end) {
  if (ms == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().event_elapsed_time(ms, start, end));
}
