// A lease as a file: what another process needs to use it, with its private key. JSON, readable by its owner
// only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pool/lease_token.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool::client {

struct GrantedDevice {
  std::string uuid;
  std::string model;
  std::uint64_t memory_bytes = 0;  ///< what the lease may use of it
  std::string agent;
  std::string agent_endpoint;
  std::uint64_t epoch = 0;
};

/// A lease as the broker tells it. Devices are in the order of the ordinals that RemoteDriver gives them:
/// as granted, but those of one agent together.
struct LeaseInfo {
  std::string id;
  std::string client;
  std::string note;
  std::vector<GrantedDevice> devices;
  std::int64_t granted_unix_ms = 0;
  std::int64_t expires_unix_ms = 0;
};

struct LeaseFile {
  std::string broker;  ///< host:port
  LeaseInfo lease;
  Bytes token;
  std::array<std::uint8_t, 32> private_key{};
};

std::string encode_lease_file(const LeaseFile& file);
/// Errors: protocol_error (no lease file, or one of another version).
Result<LeaseFile> decode_lease_file(std::string_view text);

}  // namespace cenote::pool::client
