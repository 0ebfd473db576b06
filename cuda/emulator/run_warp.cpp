// Instructions in which the lanes of a warp take part together.
#include <cstring>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::Inst;
using ptx::no_slot;
using ptx::Op;

namespace {
std::uint32_t bits_of(const std::uint8_t* mask) {
  std::uint32_t bits = 0;
  for (unsigned lane = 0; lane < warp_lanes; ++lane) bits |= std::uint32_t{mask[lane]} << lane;
  return bits;
}
}  // namespace

bool Machine::gather_warps(Group& g, Fragment& f, const Inst& i) {
  const auto* members = at<std::uint32_t>(g, i.e);
  alignas(64) std::uint8_t incomplete[group_lanes] = {};
  unsigned missing = 0;
  for (unsigned warp = f.low; warp < f.high; warp += warp_lanes) {
    const std::uint32_t here = bits_of(f.mask + warp), live = bits_of(g.live_mask + warp);
    if (here == 0) continue;
    const unsigned first = static_cast<unsigned>(__builtin_ctz(here));
    if ((members[warp + first] & live & ~here) == 0) continue;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) incomplete[warp + lane] = f.mask[warp + lane];
    missing += static_cast<unsigned>(__builtin_popcount(here));
  }
  if (missing == 0) return true;
  Fragment& waiting = missing == f.active ? f : split(g, f, incomplete);
  waiting.state = FragmentState::at_warp_barrier;
  waiting.waiting_at = static_cast<std::uint32_t>(&i - code_.insts.data());
  absorb(g, waiting);
  return &waiting != &f;
}

// bar.warp.sync may be met at different places: opens it where all lanes that are waited for stand at one.
bool Machine::release_warp_barriers(Group& g) {
  std::uint32_t standing[group_lanes / warp_lanes] = {};
  const auto at_barrier = [&](const Fragment& f) {
    return f.state == FragmentState::at_warp_barrier && code_.insts[f.pc].op == Op::warp_barrier;
  };
  for (const auto& f : g.fragments)
    if (at_barrier(*f))
      for (unsigned warp = f->low; warp < f->high; warp += warp_lanes)
        standing[warp / warp_lanes] |= bits_of(f->mask + warp);
  std::vector<Fragment*> released;
  for (const auto& f : g.fragments) {
    if (!at_barrier(*f)) continue;
    const auto* members = at<std::uint32_t>(g, code_.insts[f->pc].e);
    bool complete = true;
    for (unsigned lane = f->low; lane < f->high; ++lane)
      if (f->mask[lane]) {
        const unsigned warp = lane / warp_lanes;
        complete &=
            (members[lane] & bits_of(g.live_mask + std::size_t{warp} * warp_lanes) & ~standing[warp]) == 0;
      }
    if (complete) released.push_back(f.get());
  }
  for (Fragment* f : released) {
    f->state = FragmentState::ready;
    ++f->pc;
  }
  return !released.empty();
}

void Machine::shuffle(Group& g, const Fragment& f, const Inst& i) {
  const auto *a = at<std::uint32_t>(g, i.a), *b = at<std::uint32_t>(g, i.b), *c = at<std::uint32_t>(g, i.c);
  auto* d = at<std::uint32_t>(g, i.d);
  auto* p = i.d2 == no_slot ? nullptr : at<std::uint8_t>(g, i.d2);
  const auto mode = static_cast<ptx::ShuffleMode>(i.mode);
  for (unsigned warp = f.low; warp < f.high; warp += warp_lanes) {
    std::uint32_t value[warp_lanes];
    bool inside[warp_lanes];
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      const unsigned at_lane = warp + lane;
      const std::uint32_t by = b[at_lane] & 31, clamp = c[at_lane] & 31, segment = c[at_lane] >> 8 & 31;
      const std::uint32_t highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
      std::int64_t source = 0;
      bool good = false;
      switch (mode) {
        case ptx::ShuffleMode::up:
          source = std::int64_t{lane} - by, good = source >= std::int64_t{highest};
          break;
        case ptx::ShuffleMode::down:
          source = std::int64_t{lane} + by, good = source <= std::int64_t{highest};
          break;
        case ptx::ShuffleMode::bfly:
          source = lane ^ by, good = source <= std::int64_t{highest};
          break;
        case ptx::ShuffleMode::idx:
          source = lowest | (by & ~segment), good = source <= std::int64_t{highest};
          break;
      }
      if (!good || source < 0 || source >= static_cast<std::int64_t>(warp_lanes)) source = lane;
      inside[lane] = good;
      value[lane] = a[warp + static_cast<unsigned>(source)];
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      if (!f.mask[warp + lane]) continue;
      d[warp + lane] = value[lane];
      if (p != nullptr) p[warp + lane] = inside[lane];
    }
  }
}

void Machine::vote(Group& g, const Fragment& f, const Inst& i) {
  const auto* a = at<std::uint8_t>(g, i.a);
  const auto* members = at<std::uint32_t>(g, i.e);
  const auto mode = static_cast<ptx::VoteMode>(i.mode);
  for (unsigned warp = f.low; warp < f.high; warp += warp_lanes) {
    const std::uint32_t here = bits_of(f.mask + warp);
    std::uint32_t ayes = 0;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) ayes |= std::uint32_t{a[warp + lane]} << lane;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      if (!f.mask[warp + lane]) continue;
      const std::uint32_t voters = here & members[warp + lane], yes = ayes & voters;
      if (mode == ptx::VoteMode::ballot) {
        at<std::uint32_t>(g, i.d)[warp + lane] = yes;
        continue;
      }
      const bool result = mode == ptx::VoteMode::all   ? yes == voters
                          : mode == ptx::VoteMode::any ? yes != 0
                                                       : yes == 0 || yes == voters;
      at<std::uint8_t>(g, i.d)[warp + lane] = result;
    }
  }
}

void Machine::match(Group& g, const Fragment& f, const Inst& i) {
  const auto* members = at<std::uint32_t>(g, i.e);
  const std::byte* a = at(g, i.a);
  for (unsigned warp = f.low; warp < f.high; warp += warp_lanes) {
    const std::uint32_t here = bits_of(f.mask + warp);
    std::uint64_t values[warp_lanes] = {};
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
      std::memcpy(&values[lane], a + std::size_t{warp + lane} * i.width_a, i.width_a);
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      if (!f.mask[warp + lane]) continue;
      const std::uint32_t peers = here & members[warp + lane];
      std::uint32_t equal = 0;
      for (unsigned other = 0; other < warp_lanes; ++other)
        if (peers >> other & 1 && values[other] == values[lane]) equal |= 1u << other;
      const bool all = i.mode == 1;
      at<std::uint32_t>(g, i.d)[warp + lane] = all && equal != peers ? 0 : equal;
      if (i.d2 != no_slot) at<std::uint8_t>(g, i.d2)[warp + lane] = equal == peers;
    }
  }
}

}  // namespace cenote::cuda::emulator
