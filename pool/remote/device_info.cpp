#include "pool/remote/device_info.h"

#include <bit>
#include <cstring>

namespace cenote::pool::remote {
namespace {

void put_pairs(Writer& out, const std::vector<std::pair<int, int>>& pairs) {
  out.put(static_cast<std::uint32_t>(pairs.size()));
  for (const auto& [key, value] : pairs) out.put<std::int32_t>(key).put<std::int32_t>(value);
}

void get_pairs(Reader& in, std::vector<std::pair<int, int>>& pairs) {
  const auto count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && !in.bad(); ++i) {
    const int key = in.get<std::int32_t>();
    pairs.emplace_back(key, in.get<std::int32_t>());
  }
}

}  // namespace

Bytes pack(const DeviceDescription& device) {
  Writer out;
  out.text(device.name)
      .raw(std::as_bytes(std::span(device.uuid.bytes)))
      .put<std::int32_t>(device.driver_version);
  out.put(device.total_memory).put(device.granularity);
  put_pairs(out, device.attributes);
  out.blob(std::as_bytes(std::span(device.peers)));
  return out.take();
}

Result<DeviceDescription> unpack_device(std::span<const std::byte> bytes) {
  Reader in(bytes);
  DeviceDescription device;
  device.name = in.text();
  const auto uuid = in.raw(sizeof device.uuid.bytes);
  if (!in.bad()) std::memcpy(device.uuid.bytes, uuid.data(), uuid.size());
  device.driver_version = in.get<std::int32_t>();
  device.total_memory = in.get<std::uint64_t>();
  device.granularity = in.get<std::uint64_t>();
  get_pairs(in, device.attributes);
  for (const auto peer : in.blob()) device.peers.push_back(std::to_integer<std::uint8_t>(peer));
  if (!in.finished() || !std::has_single_bit(device.granularity))
    return fail(ErrorCode::protocol_error, "read device description", "fields do not fit");
  return device;
}

Bytes pack(const FunctionDescription& function) {
  Writer out;
  out.put(static_cast<std::uint32_t>(function.params.size()));
  for (const auto& param : function.params) {
    out.put(static_cast<std::uint32_t>(param.offset)).put(static_cast<std::uint32_t>(param.size));
  }
  put_pairs(out, function.attributes);
  return out.take();
}

Result<FunctionDescription> unpack_function(std::span<const std::byte> bytes) {
  Reader in(bytes);
  FunctionDescription function;
  const auto count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && !in.bad(); ++i) {
    const std::size_t offset = in.get<std::uint32_t>();
    const std::size_t size = in.get<std::uint32_t>();
    if (offset + size > max_param_bytes)
      return fail(ErrorCode::protocol_error, "read kernel description", "parameter beyond 4096 bytes");
    function.params.push_back({offset, size});
  }
  get_pairs(in, function.attributes);
  if (!in.finished()) return fail(ErrorCode::protocol_error, "read kernel description", "fields do not fit");
  return function;
}

Bytes pack(const Error& error) {
  Writer out;
  out.put(error.code)
      .text(error.stage)
      .text(error.cause)
      .text(error.device)
      .text(error.peer)
      .text(error.remedy);
  out.put<std::int32_t>(error.native);
  return out.take();
}

Result<Error> unpack_error(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Error error;
  const auto code = in.get<std::uint8_t>();
  error.stage = in.text();
  error.cause = in.text();
  error.device = in.text();
  error.peer = in.text();
  error.remedy = in.text();
  error.native = in.get<std::int32_t>();
  if (!in.finished() || code > static_cast<std::uint8_t>(ErrorCode::internal))
    return fail(ErrorCode::protocol_error, "read remote error", "fields do not fit");
  error.code = static_cast<ErrorCode>(code);
  return error;
}

}  // namespace cenote::pool::remote
