// The verbs transport: InfiniBand and RoCE through libibverbs. Reliable-connected queue pairs over the ports
// that the two sides share; puts are RDMA writes, their signals the immediate value of the last one.
//
// The two sides meet at a socket (side_channel.h), agree there on ports and GIDs, prove each by a real write,
// and keep the socket: through it a dead process is noticed at once and a farewell is heard. Memory that a
// put reads or a get writes is taken as it is where it lies in a region of this transport; other memory is
// copied (small) or registered for the time of the operation (large).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/transport.h"

namespace cenote {
class Logger;
}

namespace cenote::transport {
namespace verbs {
struct VerbsApi;
}

struct VerbsOptions {
  std::string host = "127.0.0.1";    ///< numeric address of the socket where the sides meet
  std::vector<std::string> devices;  ///< "mlx5_0" or "mlx5_0:1"; empty: every active port
  std::uint32_t rails = 8;           ///< most that one peer is reached over
  std::uint32_t mtu = 0;             ///< bytes, 256 to 4096; 0: the lesser of the two ports' active ones
  int gid_index = -1;                ///< of this side; -1: the likeliest pair that a write proves
  std::uint16_t pkey_index = 0;
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;  ///< of RoCE: DSCP and ECN
  int path_bits = -1;              ///< of the LIDs that an InfiniBand port answers to; -1: each in turn
  std::string near;           ///< where the data is: a GPU's PCI bus id, "numa:1"; empty: see placement.h
  std::string system_root;    ///< stands before /sys and /proc; empty: this machine's
  std::uint8_t timeout = 14;  ///< of an acknowledgement: 4.096 us * 2^timeout; 14 = 67 ms
  std::uint8_t retries = 6;   ///< before a rail counts as dead; Soft-RoCE takes 7 as for ever
  std::uint32_t queue_depth = 256;  ///< work requests that a queue pair holds
  std::uint32_t receives = 1024;    ///< buffers of the shared receive queue of each port
  /// Connections that keep their queue pairs; 0: all. More stand, without, until they are used (parking.cpp).
  std::uint32_t connections = 1024;
  std::chrono::milliseconds rest{20};  ///< one that was used within this time keeps them all the same
  bool relaxed_ordering = true;        ///< of writes into regions, where card and kernel know it
  /// Ways that cards may take to GPU memory, the best first (gpu_memory.h).
  std::vector<std::string> gpu_memory = {"dmabuf", "peermem", "staged"};
  /// A device that has finished no copy for so long, with some under way, counts as stuck.
  std::chrono::milliseconds device_patience{10'000};
  std::string sysfs = "/sys";            ///< where the kernel says which modules it has
  const verbs::VerbsApi* api = nullptr;  ///< null: libibverbs of this machine
  Logger* log = nullptr;                 ///< outlives the transport; null: none
};

/// A way by which cards come to GPU memory: "dmabuf", "peermem", "staged".
struct GpuMemoryWay {
  std::string name;
  bool usable = false;
  std::string reason;  ///< what was found, or the exact cause why not
  std::string remedy;  ///< empty: there is none
};
/// What the cards and the kernel of this machine say of each way, whatever GPU there is. Registers nothing;
/// the `gpu_memory` of the options says which ways may be used.
std::vector<GpuMemoryWay> gpu_memory_ways(const VerbsOptions& options = {});

/// Errors: not_supported (no libibverbs, no device, no port that is up: each with its reason and remedy),
/// not_found (a device of the options), resource_exhausted (locked memory), system_error.
Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options = {});

}  // namespace cenote::transport
