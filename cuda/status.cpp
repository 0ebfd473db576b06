#include <array>

#include "cuda/driver.h"

namespace cenote::cuda {
namespace {

struct Text {
  Status status;
  std::string_view name;
  std::string_view text;
};

// The names and sentences of cuGetErrorName and cuGetErrorString.
constexpr std::array kTexts = {
    Text{Status::success, "CUDA_SUCCESS", "no error"},
    Text{Status::invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    Text{Status::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    Text{Status::not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    Text{Status::deinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    Text{Status::no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    Text{Status::invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    Text{Status::invalid_image, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    Text{Status::invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    Text{Status::map_failed, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    Text{Status::already_mapped, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    Text{Status::no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU",
         "no kernel image is available for execution on the device"},
    Text{Status::not_mapped, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    Text{Status::ecc_uncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    Text{Status::unsupported_limit, "CUDA_ERROR_UNSUPPORTED_LIMIT",
         "limit is not supported on this architecture"},
    Text{Status::peer_access_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
         "peer access is not supported between these two devices"},
    Text{Status::invalid_ptx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    Text{Status::unsupported_ptx_version, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
         "the provided PTX was compiled with an unsupported toolchain."},
    Text{Status::invalid_source, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
    Text{Status::file_not_found, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    Text{Status::operating_system, "CUDA_ERROR_OPERATING_SYSTEM",
         "OS call failed or operation not supported on this OS"},
    Text{Status::invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    Text{Status::illegal_state, "CUDA_ERROR_ILLEGAL_STATE",
         "the operation cannot be performed in the present state"},
    Text{Status::not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    Text{Status::not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    Text{Status::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    Text{Status::launch_out_of_resources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
         "too many resources requested for launch"},
    Text{Status::launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    Text{Status::peer_access_already_enabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
         "peer access is already enabled"},
    Text{Status::peer_access_not_enabled, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
         "peer access has not been enabled"},
    Text{Status::context_is_destroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    Text{Status::assert_failed, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    Text{Status::host_memory_already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
         "part or all of the requested memory range is already mapped"},
    Text{Status::host_memory_not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
         "pointer does not correspond to a registered memory region"},
    Text{Status::illegal_instruction, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
         "an illegal instruction was encountered"},
    Text{Status::misaligned_address, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    Text{Status::invalid_address_space, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
         "operation not supported on global/shared address space"},
    Text{Status::launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    Text{Status::not_permitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    Text{Status::not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    Text{Status::system_not_ready, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    Text{Status::timeout, "CUDA_ERROR_TIMEOUT", "wait operation timed out"},
    Text{Status::unknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Text* find(Status status) {
  for (const auto& entry : kTexts) {
    if (entry.status == status) return &entry;
  }
  return nullptr;
}

}  // namespace

std::string_view status_name(Status status) {
  const auto* entry = find(status);
  return entry != nullptr ? entry->name : "CUDA_ERROR_(not known here)";
}

std::string_view status_text(Status status) {
  const auto* entry = find(status);
  return entry != nullptr ? entry->text : "an error code that this build has no text for";
}

}  // namespace cenote::cuda
