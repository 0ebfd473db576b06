// cu*: the library itself, devices, contexts.
#include <string>

#include "cuda/abi/exports.h"

using namespace cenote::cuda;       // NOLINT(google-build-using-namespace)
using namespace cenote::cuda::abi;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kInvalidValue = static_cast<int>(Status::invalid_value);
constexpr int kNotSupported = static_cast<int>(Status::not_supported);

// Runs `call` with `context` current, and the thread's own one again afterwards.
template <class Call>
int with_context(Context context, Call call) {
  if (context == nullptr) return call();
  const int pushed = forward(&Driver::ctx_push_current, context);
  if (pushed != 0) return pushed;
  const int status = call();
  forward(&Driver::ctx_pop_current, static_cast<Context*>(nullptr));
  return status;
}

}  // namespace

CENOTE_EXPORT int cuInit(unsigned flags) { return forward(&Driver::init, flags); }
CENOTE_EXPORT int cuDriverGetVersion(int* version) { return forward(&Driver::driver_get_version, version); }

// The texts are literals, so they end with NUL.
CENOTE_EXPORT int cuGetErrorName(int status, const char** text) {
  if (text == nullptr) return kInvalidValue;
  const auto name = status_name(static_cast<Status>(status));
  const bool known = name.find('(') == std::string_view::npos;
  *text = known ? name.data() : nullptr;
  return known ? 0 : kInvalidValue;
}
CENOTE_EXPORT int cuGetErrorString(int status, const char** text) {
  if (text == nullptr) return kInvalidValue;
  const bool known = status_name(static_cast<Status>(status)).find('(') == std::string_view::npos;
  *text = known ? status_text(static_cast<Status>(status)).data() : nullptr;
  return known ? 0 : kInvalidValue;
}

CENOTE_EXPORT int cuDeviceGetCount(int* count) { return forward(&Driver::device_get_count, count); }
CENOTE_EXPORT int cuDeviceGet(DeviceId* device, int ordinal) {
  return forward(&Driver::device_get, device, ordinal);
}
CENOTE_EXPORT int cuDeviceGetName(char* name, int length, DeviceId device) {
  return forward(&Driver::device_get_name, name, length, device);
}
CENOTE_EXPORT int cuDeviceGetUuid(DeviceUuid* uuid, DeviceId device) {
  return forward(&Driver::device_get_uuid, uuid, device);
}
CENOTE_EXPORT int cuDeviceGetUuid_v2(DeviceUuid* uuid, DeviceId device) {
  return cuDeviceGetUuid(uuid, device);
}
CENOTE_EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, DeviceId device) {
  return forward(&Driver::device_total_mem, bytes, device);
}
CENOTE_EXPORT int cuDeviceGetAttribute(int* value, int attribute, DeviceId device) {
  return forward(&Driver::device_get_attribute, value, static_cast<DeviceAttribute>(attribute), device);
}
CENOTE_EXPORT int cuDeviceComputeCapability(int* major, int* minor, DeviceId device) {
  const int status =
      cuDeviceGetAttribute(major, static_cast<int>(DeviceAttribute::compute_capability_major), device);
  if (status != 0) return status;
  return cuDeviceGetAttribute(minor, static_cast<int>(DeviceAttribute::compute_capability_minor), device);
}
CENOTE_EXPORT int cuDeviceCanAccessPeer(int* can, DeviceId device, DeviceId peer) {
  return forward(&Driver::device_can_access_peer, can, device, peer);
}

CENOTE_EXPORT int cuDevicePrimaryCtxRetain(Context* context, DeviceId device) {
  return forward(&Driver::primary_ctx_retain, context, device);
}
CENOTE_EXPORT int cuDevicePrimaryCtxRelease(DeviceId device) {
  return forward(&Driver::primary_ctx_release, device);
}
CENOTE_EXPORT int cuDevicePrimaryCtxRelease_v2(DeviceId device) { return cuDevicePrimaryCtxRelease(device); }

CENOTE_EXPORT int cuCtxCreate_v2(Context* context, unsigned flags, DeviceId device) {
  return forward(&Driver::ctx_create, context, flags, device);
}
// The parameters of v3 and v4 ask for execution affinity and for CIG; neither exists here.
CENOTE_EXPORT int cuCtxCreate_v3(Context* context, void* affinity, int count, unsigned flags,
                                 DeviceId device) {
  return affinity != nullptr && count > 0 ? kNotSupported : cuCtxCreate_v2(context, flags, device);
}
CENOTE_EXPORT int cuCtxCreate_v4(Context* context, void* parameters, unsigned flags, DeviceId device) {
  return parameters != nullptr ? kNotSupported : cuCtxCreate_v2(context, flags, device);
}
CENOTE_EXPORT int cuCtxDestroy_v2(Context context) { return forward(&Driver::ctx_destroy, context); }
CENOTE_EXPORT int cuCtxSetCurrent(Context context) { return forward(&Driver::ctx_set_current, context); }
CENOTE_EXPORT int cuCtxGetCurrent(Context* context) { return forward(&Driver::ctx_get_current, context); }
CENOTE_EXPORT int cuCtxPushCurrent_v2(Context context) { return forward(&Driver::ctx_push_current, context); }
CENOTE_EXPORT int cuCtxPopCurrent_v2(Context* context) { return forward(&Driver::ctx_pop_current, context); }
CENOTE_EXPORT int cuCtxGetDevice(DeviceId* device) { return forward(&Driver::ctx_get_device, device); }
CENOTE_EXPORT int cuCtxGetDevice_v2(DeviceId* device, Context context) {
  return with_context(context, [&] { return cuCtxGetDevice(device); });
}
CENOTE_EXPORT int cuCtxSynchronize() { return forward(&Driver::ctx_synchronize); }
CENOTE_EXPORT int cuCtxSynchronize_v2(Context context) {
  return with_context(context, [] { return cuCtxSynchronize(); });
}
CENOTE_EXPORT int cuCtxGetApiVersion(Context /*context*/, unsigned* version) {
  if (version == nullptr) return kInvalidValue;
  *version = 3020;
  return 0;
}
CENOTE_EXPORT int cuCtxEnablePeerAccess(Context peer, unsigned flags) {
  return forward(&Driver::ctx_enable_peer_access, peer, flags);
}
