// Place: what a launcher told this process: which rank of how many it is, and where rank 0 can be met. Read
// from variables alone, without a call to anybody; docs/launching.md has the rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/result.h"
#include "runtime/settings.h"

namespace cenote::launcher {

enum class Kind : std::uint8_t { none, pmix, slurm, torchrun };
std::string_view to_string(Kind kind);

struct Place {
  Kind kind = Kind::none;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;  ///< 0 for PMIx, whose server is asked (launcher_meeting.h), as for those below
  std::uint32_t local_rank = 0;
  std::uint32_t local_ranks = 1;  ///< on this machine
  std::string root_host{};        ///< name or address of rank 0's machine (Slurm, torchrun)
  std::string job{};              ///< differs between jobs, and between the attempts of one

  [[nodiscard]] bool one_machine() const { return local_ranks == ranks; }
};

/// `wanted`: a word of the setting `launcher`. Where several could be meant, `auto` takes torchrun, which
/// says so by TORCHELASTIC_RUN_ID; else PMIx; else Slurm; else RANK and WORLD_SIZE set by hand. Errors:
/// not_found (nobody of them started this process: what was looked for), invalid_argument (variables are
/// missing, are no numbers or contradict each other: names them), not_supported (a step whose rank 0 is not
/// on its first node).
Result<Place> find_place(std::string_view wanted, const Environment& environment);

/// Fills in what follows from the ranks of this machine, "0,2,4", as PMIx lists them. Errors: protocol_error.
Result<void> place_among(std::string_view local_peers, Place& place);

}  // namespace cenote::launcher
