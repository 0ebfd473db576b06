// What the exported cu* functions of the drop-in libcuda.so.1 call: the driver of the session that `cenote
// lease` opened for this program. The interface demands global state; it is made at the first call and never
// destroyed, because libraries call the driver after static destructors have run.
#include "cuda/abi/supplier.h"

#include <cstdio>
#include <memory>

#include "pool/dropin/session.h"
#include "runtime/fork_mark.h"
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

/// The driver, and the process that opened it: a child that it forks shares its rings and sockets, but not
/// its threads, and has no driver, as with CUDA's own library. One that forks before the first call opens its
/// own.
struct Opened {
  ForkMark process;
  Driver* driver = nullptr;
};

const Opened* make() {
  auto made = std::make_unique<Opened>();
  const auto opened = [&]() -> Result<void> {
    CENOTE_TRY(made->process.set());
    CENOTE_ASSIGN(auto driver, open());
    made->driver = driver.release();
    return {};
  }();
  if (!opened) std::fprintf(stderr, "cenote: libcuda: %s\n", opened.error().message().c_str());
  return made.release();
}

}  // namespace

Driver* driver() {
  static const Opened* const only = make();
  return only->process.forked() ? nullptr : only->driver;
}

}  // namespace cenote::cuda::abi
