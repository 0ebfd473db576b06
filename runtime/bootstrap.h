// Bootstrap: how ranks that know only a UniqueId find each other and exchange a few bytes. A tree over TCP;
// ranks may arrive in any order; every call ends at its deadline with an error that names who is missing, and
// soon after the death of a rank that had said who it is, with that rank named.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote {

/// Where the root listens, and a 128-bit secret that whoever joins must know. Text form: one token without
/// blanks, so that it can be passed on a command line.
struct UniqueId {
  std::string host;
  std::uint16_t port = 0;
  std::array<std::uint8_t, 16> secret{};

  [[nodiscard]] std::string text() const;
  static Result<UniqueId> parse(std::string_view text);
};

/// Listens for the ranks of one group. Make it in the process that creates the id (usually rank 0's), keep it
/// until that group's Bootstrap::join has returned. It has a thread of its own and serves until destroyed.
class BootstrapRoot {
 public:
  virtual ~BootstrapRoot() = default;
  [[nodiscard]] virtual const UniqueId& id() const = 0;
  /// `host`: the address to listen on and to publish, "127.0.0.1" on one machine. `port` 0: any.
  static Result<std::unique_ptr<BootstrapRoot>> create(const std::string& host, std::uint16_t port = 0);
  /// For ranks that know host, ports and secret beforehand: listens at the first of `ports` that is free.
  /// Errors: already_exists (all are in use).
  static Result<std::unique_ptr<BootstrapRoot>> create_at(const std::string& host,
                                                          std::span<const std::uint16_t> ports,
                                                          const std::array<std::uint8_t, 16>& secret);
};

/// One rank's membership. Calls are collective: every rank makes the same ones in the same order. Not
/// thread-safe; `cancel` may be null.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  static Result<std::unique_ptr<Bootstrap>> join(const UniqueId& id, std::uint32_t rank, std::uint32_t size,
                                                 Deadline deadline, const CancelFlag* cancel = nullptr);
  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  /// Everybody's contribution, by rank (lengths may differ; at most 1 MiB each).
  virtual Result<std::vector<Bytes>> allgather(std::span<const std::byte> mine, Deadline deadline) = 0;
  /// Rank 0's bytes, at every rank.
  virtual Result<Bytes> broadcast(std::span<const std::byte> mine, Deadline deadline) = 0;
  virtual Result<void> barrier(Deadline deadline) = 0;
  /// The same for a rank that has something else to get done first: `ready` is asked again and again, does
  /// not wait, and says true when this rank may take part. Meanwhile a rank that dies is noticed. A failure
  /// of `ready` ends the group, with the rank named that it names.
  virtual Result<void> barrier_when(const std::function<Result<bool>()>& ready, Deadline deadline) = 0;
};

}  // namespace cenote
