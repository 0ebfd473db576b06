#include "pool/client/lease_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/process.h"

namespace cenote::pool::client {

namespace {

using nlohmann::json;

constexpr int kVersion = 1;

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

// Throws json::exception, which decode_lease_file catches.
LeaseInfo lease_from(const json& in) {
  LeaseInfo lease;
  in.at("id").get_to(lease.id);
  in.at("client").get_to(lease.client);
  in.at("note").get_to(lease.note);
  in.at("granted_unix_ms").get_to(lease.granted_unix_ms);
  in.at("expires_unix_ms").get_to(lease.expires_unix_ms);
  for (const auto& device : in.at("devices")) {
    auto& out = lease.devices.emplace_back();
    device.at("uuid").get_to(out.uuid);
    device.at("model").get_to(out.model);
    device.at("memory_bytes").get_to(out.memory_bytes);
    device.at("agent").get_to(out.agent);
    device.at("agent_endpoint").get_to(out.agent_endpoint);
    device.at("epoch").get_to(out.epoch);
  }
  return lease;
}

tl::unexpected<Error> no_lease_file(std::string why) {
  return fail(Error{ErrorCode::protocol_error, "read lease file", std::move(why)}.fix(
      "make one with: cenote lease --gpus N --detach > FILE"));
}

}  // namespace

std::string encode_lease_file(const LeaseFile& file) {
  const json out = {{"cenote_lease", kVersion},
                    {"broker", file.broker},
                    {"lease", to_json(file.lease)},
                    {"token", to_hex(std::span<const std::byte>(file.token))},
                    {"private_key", to_hex(std::span<const std::uint8_t>(file.private_key))}};
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<LeaseFile> decode_lease_file(std::string_view text) {
  try {
    const auto in = json::parse(text);
    if (in.at("cenote_lease").get<int>() != kVersion)
      return no_lease_file("it is of another version of cenote");
    LeaseFile file;
    in.at("broker").get_to(file.broker);
    file.lease = lease_from(in.at("lease"));
    CENOTE_ASSIGN(file.token, from_hex(in.at("token").get<std::string>()));
    CENOTE_ASSIGN(const auto key, from_hex(in.at("private_key").get<std::string>()));
    if (key.size() != file.private_key.size()) return no_lease_file("its private key is not 32 bytes long");
    std::ranges::transform(key, file.private_key.begin(),
                           [](std::byte b) { return static_cast<std::uint8_t>(b); });
    return file;
  } catch (const json::exception& error) {
    return no_lease_file(error.what());
  }
}

}  // namespace cenote::pool::client
