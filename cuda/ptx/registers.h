// Registers of one function: which virtual registers may share a place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/ptx/code.h"

namespace cenote::cuda::ptx {

struct RegisterPlaces {
  std::vector<Slot> places;  ///< of each virtual register, in bytes per lane
  std::uint64_t bytes = 0;   ///< in all
};

/// Calls visit(slot, is_result) for every register that an instruction names; constants and foreign words
/// included.
template <class Visit>
void for_each_slot(Inst& i, std::vector<Slot>& lists, Visit visit) {
  const auto one = [&](Slot& s, bool is_result) {
    if (s != no_slot) visit(s, is_result);
  };
  one(i.guard, false);
  one(i.a, false);
  one(i.b, false);
  one(i.c, false);
  one(i.e, false);
  if (i.op == Op::load || i.op == Op::store)
    for (std::uint32_t k = 0; k < i.count; ++k) one(lists[i.list + k], i.op != Op::store);
  one(i.d, true);
  one(i.d2, true);
}

/// `insts` is the function, its branches' targets relative to `first`. The first `fixed` registers keep
/// places of their own, in order, at the start. Time is bounded by the length of the function: when it is too
/// long for the analysis, nothing is shared.
RegisterPlaces place_registers(std::span<Inst> insts, std::uint32_t first, std::vector<Slot>& lists,
                               const std::vector<std::uint8_t>& widths, std::size_t fixed);

}  // namespace cenote::cuda::ptx
