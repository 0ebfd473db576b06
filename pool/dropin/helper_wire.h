// What libcenote-pool and its helper process (`cenote session`) say to each other over one socket pair, in
// frames of session_wire.h. The library asks, any number of requests at once; each is answered with its id.
// Not API: both come from one build, and the first request says which.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "pool/remote/client_driver.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool::dropin {

/// Grows with every change of what follows.
inline constexpr std::uint32_t helper_protocol = 2;

/// The helper finds its end of the pair as this descriptor.
inline constexpr int helper_fd = 3;

/// The broker's names for leases are long; the helper numbers those it keeps. 0 = none.
using LeaseNumber = std::uint64_t;

struct LeasedGpu {
  std::string uuid, model, agent;
  std::uint64_t memory_bytes = 0;
};

// ---- requests ----

/// The first of all: load the certificates, be ready for the pool that these settings name.
struct ConnectAsk {
  std::uint32_t protocol = helper_protocol;
  std::vector<std::string> settings;  ///< "name=value"; the helper reads no other source
};
/// A lease that the helper renews, and gives back when the program ends without a word.
struct LeaseAsk {
  std::uint32_t gpus = 1;
  std::string model;
  std::uint64_t memory_bytes = 0;
  std::uint32_t ttl_ms = 0;
  std::string note;
  std::uint32_t wait_ms = 0;  ///< for GPUs that are held or being cleared; part of the request's timeout
};
/// A lease of somebody else's: neither renewed nor given back.
struct AdoptAsk {
  std::string file;  ///< its contents
};
struct OpenAsk {
  LeaseNumber lease = 0;
  Bytes fabric_address;
};
struct ReleaseAsk {
  LeaseNumber lease = 0;
};
/// Stop renewing it; not answered.
struct ForgetAsk {
  LeaseNumber lease = 0;
};
using Ask = std::variant<ConnectAsk, LeaseAsk, AdoptAsk, OpenAsk, ReleaseAsk, ForgetAsk>;

struct Request {
  std::uint64_t id = 0;
  std::uint32_t timeout_ms = 0;
  Ask ask;
};

// ---- replies ----

struct ReadyReply {
  std::int32_t pid = 0;
};
struct LeaseReply {
  LeaseNumber lease = 0;
  std::string id;
  std::vector<LeasedGpu> gpus;
};
struct WorkersReply {
  std::vector<remote::WorkerAddress> workers;
};
struct DoneReply {};
struct FailedReply {
  Error error;
};
/// Not an answer (id 0): the broker says that a lease is over.
struct LostReply {
  LeaseNumber lease = 0;
  Error error;
};
using ReplyBody = std::variant<ReadyReply, LeaseReply, WorkersReply, DoneReply, FailedReply, LostReply>;

struct Reply {
  std::uint64_t id = 0;
  ReplyBody body;
};

Bytes encode(const Request& request);
Bytes encode(const Reply& reply);
/// Errors: protocol_error (cut short, longer than it says, or of no known kind).
Result<Request> decode_request(std::span<const std::byte> frame);
Result<Reply> decode_helper_reply(std::span<const std::byte> frame);

}  // namespace cenote::pool::dropin
