// The verifier: proves a set of schedules, one for each rank, by running the plans of all ranks on symbols.
//
// Proved, for the element count given, in place and out of place:
//  - every output element holds exactly what it should: for an allreduce one contribution of each rank and
//  one
//    finish, combined alike at every rank (so all ranks get the same bits); for a barrier, word of every
//    rank;
//  - both sides of every message agree on its length, and nothing undefined is sent, reduced or left behind;
//  - nothing waits for ever. The run uses chunks of one element (and, again, whole slices) and links that
//  hold one
//    chunk. A step that can move stays able to move until it does (only its own flow takes from its link's
//    end), so one run that ends means that every run ends, in any order; larger links only take waits away.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/schedule.h"

namespace cenote::collectives {

/// How elements were combined: node 0 is undefined, nodes 1 .. ranks are the ranks' own contributions, and
/// each later one combines two earlier ones.
class ReductionTrees {
 public:
  struct Node {
    std::uint32_t left = 0, right = 0;  ///< 0 and 0 for a rank's own
    std::uint32_t lowest = 0;           ///< lowest rank in it
    bool finished = false;              ///< left with an average's division done
  };
  std::vector<Node> nodes;
  /// "((0 + 1) + 2)"; the operand that holds the lower rank is written first (the operations commute).
  [[nodiscard]] std::string text(std::uint32_t node) const;
};

struct VerifierOptions {
  bool in_place = false;
  bool whole_slices = false;  ///< move whole slices at a time instead of single elements
  std::uint64_t order = 0;    ///< seed: in which order ranks get their turn; 0 = by rank
};

struct Proof {
  ReductionTrees trees;
  std::vector<std::uint32_t>
      output;                ///< allreduce and barrier: the tree of each element, the same at every rank
  std::uint64_t rounds = 0;  ///< on the longest path, messages one after the other, one send a rank at a time
  std::uint64_t most_elements = 0;  ///< that one rank sends
  std::uint64_t messages = 0;       ///< of all ranks, whole slices
};

/// `schedules[r]` is rank r's. Errors: invalid_argument; the cause names rank, step and element, the expected
/// and the found. A deadlock lists who waits for whom.
Result<Proof> verify(std::span<const Schedule> schedules, std::uint64_t count,
                     const VerifierOptions& options = {});

/// verify() for both placements, element by element and in whole slices.
Result<Proof> prove(std::span<const Schedule> schedules, std::uint64_t count);

}  // namespace cenote::collectives
