// Shared by exports*.cpp: how an exported function looks. Their C names and signatures are those of cuda.h.
#pragma once

#include <string_view>

#include "cuda/abi/supplier.h"
#include "cuda/abi/types.h"

#define CENOTE_EXPORT extern "C" __attribute__((visibility("default")))

namespace cenote::cuda::abi {

/// Calls `method` of the driver behind the exports.
template <class Result, class... Formal, class... Actual>
int forward(Result (Driver::*method)(Formal...), Actual... arguments) {
  auto* target = driver();
  if (target == nullptr) return static_cast<int>(Status::not_initialized);
  return static_cast<int>((target->*method)(arguments...));
}

/// The newest export of that plain name whose version is at most `version`; nullptr and the reason in `how`
/// (as CUdriverProcAddressQueryResult) when there is none.
void (*find_proc(std::string_view name, int version, bool per_thread, int& how))();

/// What stream 0 means to the `_ptsz` and `_ptds` variants.
inline Stream per_thread(Stream stream) {
  return stream != nullptr
             ? stream
             : reinterpret_cast<Stream>(stream_per_thread);  // NOLINT(performance-no-int-to-ptr)
}

/// `_ptds`: the call on the thread's own default stream, then a wait for it.
template <class Enqueue>
int and_wait(Enqueue enqueue) {
  const int status = enqueue();
  return status == 0 ? forward(&Driver::stream_synchronize, per_thread(nullptr)) : status;
}

}  // namespace cenote::cuda::abi
