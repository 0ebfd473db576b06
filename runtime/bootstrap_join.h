// Joining a group: from a UniqueId to connections with parent and children in the tree.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/bootstrap.h"
#include "runtime/frame_channel.h"

namespace cenote::bootstrap {

struct Neighbour {
  std::uint32_t rank;
  FrameChannel channel;
};

/// One rank's place: rank 0 has no parent, a leaf no children.
struct Tree {
  std::optional<Neighbour> parent;
  std::vector<Neighbour> children;
};

/// Returns when every rank of the group is connected. Errors: deadline_exceeded (names who is missing),
/// cancelled, permission_denied (wrong secret), already_exists (that rank is there), invalid_argument (sizes
/// differ; or others contradict each other, by that or by coming twice: all are told), peer_failed (the root
/// or a neighbour is gone; or a rank left after it had registered, and did not come back within 1.5 s: it is
/// named).
Result<Tree> join_tree(const UniqueId& id, std::uint32_t rank, std::uint32_t size, Deadline deadline,
                       const CancelFlag* cancel);

}  // namespace cenote::bootstrap
