#include "pool/client/lease_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "pool/client/lease_json.h"
#include "runtime/process.h"

namespace cenote::pool::client {

namespace {

using nlohmann::json;

constexpr int kVersion = 1;

/// Reads the fields of one object, and remembers the first that is missing or of another kind.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  template <class T>
  Fields& read(const char* name, T& out) {
    const auto field = object_.find(name);
    if (field == object_.end() || !is<T>(*field)) {
      if (bad_.empty()) bad_ = name;
    } else {
      field->get_to(out);
    }
    return *this;
  }
  [[nodiscard]] const std::string& bad() const { return bad_; }

 private:
  template <class T>
  static bool is(const json& field) {
    if constexpr (std::is_same_v<T, std::string>)
      return field.is_string();
    else if constexpr (std::is_unsigned_v<T>)
      return field.is_number_unsigned();
    else
      return field.is_number_integer();
  }

  const json& object_;
  std::string bad_;
};

// The first field that is not as it should be; "" when all are.
std::string read_lease_json(const json& in, LeaseInfo& lease) {
  if (!in.is_object()) return "lease";
  Fields fields(in);
  fields.read("id", lease.id)
      .read("client", lease.client)
      .read("note", lease.note)
      .read("granted_unix_ms", lease.granted_unix_ms)
      .read("expires_unix_ms", lease.expires_unix_ms);
  if (!fields.bad().empty()) return "lease." + fields.bad();
  const auto devices = in.find("devices");
  if (devices == in.end() || !devices->is_array()) return "lease.devices";
  for (const auto& device : *devices) {
    if (!device.is_object()) return "lease.devices";
    auto& out = lease.devices.emplace_back();
    Fields device_fields(device);
    device_fields.read("uuid", out.uuid)
        .read("model", out.model)
        .read("memory_bytes", out.memory_bytes)
        .read("agent", out.agent)
        .read("agent_endpoint", out.agent_endpoint)
        .read("epoch", out.epoch);
    if (!device_fields.bad().empty()) return "lease.devices." + device_fields.bad();
  }
  return {};
}

tl::unexpected<Error> no_lease_file(std::string why) {
  return fail(Error{ErrorCode::protocol_error, "read lease file", std::move(why)}.fix(
      "make one with: cenote lease --gpus N --detach > FILE"));
}

}  // namespace

json to_json(const LeaseInfo& lease) {
  auto devices = json::array();
  for (const auto& device : lease.devices) {
    devices.push_back({{"uuid", device.uuid},
                       {"model", device.model},
                       {"memory_bytes", device.memory_bytes},
                       {"agent", device.agent},
                       {"agent_endpoint", device.agent_endpoint},
                       {"epoch", device.epoch}});
  }
  return {{"id", lease.id},
          {"client", lease.client},
          {"note", lease.note},
          {"granted_unix_ms", lease.granted_unix_ms},
          {"expires_unix_ms", lease.expires_unix_ms},
          {"devices", std::move(devices)}};
}

std::string encode_lease_file(const LeaseFile& file) {
  const json out = {{"cenote_lease", kVersion},
                    {"broker", file.broker},
                    {"lease", to_json(file.lease)},
                    {"token", to_hex(std::span<const std::byte>(file.token))},
                    {"private_key", to_hex(std::span<const std::uint8_t>(file.private_key))}};
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<LeaseFile> decode_lease_file(std::string_view text) {
  const auto in = json::parse(text, nullptr, false);
  if (!in.is_object() || !in.contains("cenote_lease"))
    return no_lease_file("it is not the text that cenote writes, or not all of it");
  LeaseFile file;
  int version = 0;
  std::string token, key;
  Fields fields(in);
  fields.read("cenote_lease", version);
  if (fields.bad().empty() && version != kVersion) {
    return no_lease_file("it is of version " + std::to_string(version) + ", this cenote reads version " +
                         std::to_string(kVersion));
  }
  fields.read("broker", file.broker).read("token", token).read("private_key", key);
  std::string bad = fields.bad();
  if (bad.empty() && !in.contains("lease")) bad = "lease";
  if (bad.empty()) bad = read_lease_json(in["lease"], file.lease);
  if (!bad.empty()) return no_lease_file("its field " + bad + " is missing, or of the wrong kind");
  const auto token_bytes = from_hex(token);
  if (!token_bytes) return no_lease_file("its token is damaged");
  file.token = *token_bytes;
  const auto key_bytes = from_hex(key);
  if (!key_bytes || key_bytes->size() != file.private_key.size())
    return no_lease_file("its private key is damaged");
  std::ranges::transform(*key_bytes, file.private_key.begin(),
                         [](std::byte b) { return static_cast<std::uint8_t>(b); });
  return file;
}

}  // namespace cenote::pool::client
