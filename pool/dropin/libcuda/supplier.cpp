// What the exported cu* functions of the drop-in libcuda.so.1 call: the driver of the session that `cenote
// lease` opened for this program. The interface demands global state; it is made at the first call and never
// destroyed, because libraries call the driver after static destructors have run.
#include "cuda/abi/supplier.h"

#include <cstdio>

#include "pool/dropin/session.h"
#include "runtime/settings.h"

namespace cenote::cuda::abi {
namespace {

Result<std::unique_ptr<pool::remote::RemoteDriver>> open() {
  CENOTE_ASSIGN(const auto settings, Settings::load());
  const auto& socket = settings.text("session.socket");
  if (socket.empty()) {
    return fail(
        Error{ErrorCode::not_found, "find leased GPUs", "this program was not started under a lease"}.fix(
            "start it with `cenote lease --gpus N -- PROGRAM`"));
  }
  return pool::dropin::open_session(socket, transport::fabric_options(settings),
                                    Deadline::in(settings.duration("session.timeout")),
                                    settings.duration("worker.timeout"));
}

Driver* make() {
  auto opened = open();
  if (!opened) {
    std::fprintf(stderr, "cenote: libcuda: %s\n", opened.error().message().c_str());
    return nullptr;
  }
  return opened->release();
}

}  // namespace

Driver* driver() {
  static Driver* const only = make();
  return only;
}

}  // namespace cenote::cuda::abi
