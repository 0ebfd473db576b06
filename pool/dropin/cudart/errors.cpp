#include <algorithm>
#include <array>

#include "pool/dropin/cudart/abi.h"
#include "pool/dropin/cudart/runtime.h"

namespace cenote::cudart {
namespace {

struct Entry {
  int code;
  const char* name;
  const char* text;
};

constexpr std::array entries{
    Entry{0, "cudaSuccess", "no error"},
    Entry{1, "cudaErrorInvalidValue", "invalid argument"},
    Entry{2, "cudaErrorMemoryAllocation", "out of memory"},
    Entry{3, "cudaErrorInitializationError", "initialization error"},
    Entry{4, "cudaErrorCudartUnloading", "driver shutting down"},
    Entry{9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    Entry{13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    Entry{21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    Entry{35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    Entry{52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    Entry{98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    Entry{100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    Entry{101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    Entry{200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    Entry{201, "cudaErrorDeviceUninitialized", "invalid device context"},
    Entry{209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    Entry{217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    Entry{218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    Entry{222, "cudaErrorUnsupportedPtxVersion",
          "the provided PTX was compiled with an unsupported toolchain."},
    Entry{300, "cudaErrorInvalidSource", "device kernel image is invalid"},
    Entry{304, "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS"},
    Entry{400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    Entry{500, "cudaErrorSymbolNotFound", "named symbol not found"},
    Entry{600, "cudaErrorNotReady", "device not ready"},
    Entry{700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    Entry{701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    Entry{702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    Entry{704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    Entry{705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    Entry{709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    Entry{710, "cudaErrorAssert", "device-side assert triggered"},
    Entry{712, "cudaErrorHostMemoryAlreadyRegistered",
          "part or all of the requested memory range is already mapped"},
    Entry{713, "cudaErrorHostMemoryNotRegistered",
          "pointer does not correspond to a registered memory region"},
    Entry{715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    Entry{716, "cudaErrorMisalignedAddress", "misaligned address"},
    Entry{717, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
    Entry{719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    Entry{800, "cudaErrorNotPermitted", "operation not permitted"},
    Entry{801, "cudaErrorNotSupported", "operation not supported"},
    Entry{802, "cudaErrorSystemNotReady", "system not yet initialized"},
    Entry{999, "cudaErrorUnknown", "unknown error"},
};

const Entry* find(int code) {
  const auto* found =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.code == code; });
  return found == entries.end() ? nullptr : found;
}

}  // namespace

const char* error_name(int error) {
  const auto* entry = find(error);
  return entry == nullptr ? "unrecognized error code" : entry->name;
}
const char* error_text(int error) {
  const auto* entry = find(error);
  return entry == nullptr ? "unrecognized error code" : entry->text;
}

}  // namespace cenote::cudart

CENOTE_RT const char* cudaGetErrorName(int error) { return cenote::cudart::error_name(error); }
CENOTE_RT const char* cudaGetErrorString(int error) { return cenote::cudart::error_text(error); }
CENOTE_RT int cudaGetLastError() { return cenote::cudart::take_last_error(); }
CENOTE_RT int cudaPeekAtLastError() { return cenote::cudart::peek_last_error(); }
