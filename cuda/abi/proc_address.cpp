// cuGetProcAddress: a function by its plain name and the version whose ABI the caller was compiled for.
#include <cstdint>

#include "cuda/abi/exports.h"

namespace cenote::cuda::abi {
namespace {

int get(const char* name, void** function, int version, std::uint64_t flags, int* how) {
  constexpr std::uint64_t kKnown = proc_legacy_stream | proc_per_thread_stream;
  if (name == nullptr || function == nullptr || (flags & ~kKnown) != 0 || (flags & kKnown) == kKnown) {
    return static_cast<int>(Status::invalid_value);
  }
  int result = proc_not_found;
  *function =
      reinterpret_cast<void*>(find_proc(name, version, (flags & proc_per_thread_stream) != 0, result));
  if (how != nullptr) *how = result;
  return 0;
}

}  // namespace
}  // namespace cenote::cuda::abi

CENOTE_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t flags,
                                      int* how) {
  return cenote::cuda::abi::get(name, function, version, flags, how);
}

// The older form has no `how`: what is not found is an error.
CENOTE_EXPORT int cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  int how = 0;
  const int status = cenote::cuda::abi::get(name, function, version, flags, &how);
  if (status != 0 || how == cenote::cuda::abi::proc_found) return status;
  return static_cast<int>(cenote::cuda::Status::not_found);
}
