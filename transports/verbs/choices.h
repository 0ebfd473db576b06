// What was chosen for a rail's path, and why: one line for the log.
#pragma once

#include <string>

#include "transports/verbs/port.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::verbs {

struct PathChoice {
  std::uint32_t mtu = 0;  ///< bytes
  GidPair gids;
  std::size_t attempt = 0, pairs = 1;        ///< which of how many pairs of GIDs
  std::uint8_t my_path = 0, their_path = 0;  ///< path bits
};
/// The MTU of the path between two ports.
int path_mtu(const Port& mine, const Port& theirs, const VerbsOptions& options);
/// "path mtu 4096, the lesser of the two ports'; gid 3 > 1, ...".
std::string text_of(const PathChoice& choice, const Port& mine, const Port& theirs,
                    const VerbsOptions& options);

}  // namespace cenote::transport::verbs
