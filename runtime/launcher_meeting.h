// Meeting: how the ranks that a launcher started come to one UniqueId. By PMIx rank 0 publishes it. Slurm and
// torchrun carry no data: there, host, secret and ports follow from what every rank is told, rank 0 listens
// at the first port that is free, and the others ask at all of them for the group with that secret.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/bootstrap.h"
#include "runtime/launcher.h"
#include "runtime/pmix.h"

namespace cenote::launcher {

/// find_place, with what only PMIx's server knows. `pmix` gets the connection where there is one. Errors:
/// also those of Pmix.
Result<Place> ask_place(std::string_view wanted, const Environment& environment, Deadline deadline,
                        std::unique_ptr<Pmix>& pmix);

struct MeetingOptions {
  std::string group = "world";        ///< letters, digits and ._-, at most 64
  std::optional<std::string> host{};  ///< this machine's address; none = found out
  std::uint16_t port = 0;             ///< of rank 0; 0 = one of those of the group
};

/// Hold it until the group has formed.
struct Meeting {
  UniqueId id{};
  std::string host{};                     ///< of this machine, that the other ranks reach
  std::unique_ptr<BootstrapRoot> root{};  ///< at rank 0
};

/// `pmix`: of ask_place, for a place of PMIx; null otherwise. Errors: invalid_argument (group; an address
/// that others cannot reach), already_exists (no port is free), not_found (a name that is no machine's),
/// deadline_exceeded (rank 0 has not arrived), those of Pmix.
Result<Meeting> meet(const Place& place, Pmix* pmix, const MeetingOptions& options, Deadline deadline);

/// What the ranks of one group have in common, and no other group: neither another job's on the same machine,
/// nor another of the same job.
struct GroupKey {
  std::array<std::uint8_t, 16> secret{};
  std::array<std::uint16_t, 16> ports{};  ///< above those that Linux gives to connections; all different
};
GroupKey group_key(std::string_view job, std::string_view group);

}  // namespace cenote::launcher
