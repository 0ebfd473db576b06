// Fragments and barriers of one block.
#include <algorithm>
#include <cstring>
#include <new>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::Inst;
using ptx::no_slot;

Fragment& Machine::add_fragment(Group& g) {
  if (g.spare.empty()) {
    g.fragments.push_back(std::make_unique<Fragment>());
  } else {
    g.fragments.push_back(std::move(g.spare.back()));
    g.spare.pop_back();
  }
  Fragment& f = *g.fragments.back();
  std::memset(f.mask, 0, sizeof f.mask);
  f.calls.clear();
  f.state = FragmentState::ready;
  f.last_run = 0;
  return f;
}

void Machine::drop(Group& g, Fragment& f) {
  const auto found =
      std::find_if(g.fragments.begin(), g.fragments.end(), [&](const auto& p) { return p.get() == &f; });
  g.spare.push_back(std::move(*found));
  g.fragments.erase(found);
}

void Machine::measure(Fragment& f) {
  f.active = 0;
  f.low = group_lanes;
  f.high = 0;
  for (unsigned warp = 0; warp < group_lanes; warp += warp_lanes) {
    unsigned count = 0;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) count += f.mask[warp + lane];
    if (count == 0) continue;
    f.active += count;
    f.low = std::min(f.low, warp);
    f.high = warp + warp_lanes;
  }
}

// The lanes of `leaving` (some but not all of f's) become a fragment of their own at the same place.
Fragment& Machine::split(Group& g, Fragment& f, const std::uint8_t* leaving) {
  Fragment& other = add_fragment(g);
  for (unsigned lane = f.low; lane < f.high; ++lane) {
    other.mask[lane] = f.mask[lane] & leaving[lane];
    f.mask[lane] &= static_cast<std::uint8_t>(other.mask[lane] ^ 1);
  }
  other.pc = f.pc;
  other.calls = f.calls;
  other.last_run = f.last_run;
  measure(f);
  measure(other);
  return other;
}

// Joins all fragments that stand where `into` does.
void Machine::absorb(Group& g, Fragment& into) {
  bool changed = false;
  for (std::size_t k = 0; k < g.fragments.size();) {
    Fragment& other = *g.fragments[k];
    const bool together =
        other.state == FragmentState::ready ||
        (other.state == FragmentState::at_warp_barrier && into.state == FragmentState::at_warp_barrier);
    if (&other == &into || !together || other.pc != into.pc || other.calls != into.calls) {
      ++k;
      continue;
    }
    for (unsigned lane = other.low; lane < other.high; ++lane) into.mask[lane] |= other.mask[lane];
    changed = true;
    g.spare.push_back(std::move(g.fragments[k]));
    g.fragments.erase(g.fragments.begin() + static_cast<std::ptrdiff_t>(k));
  }
  if (!changed) return;
  into.state = FragmentState::ready;
  measure(into);
}

// Inside a call first, then the lowest address; or, so that nobody starves, the one that has not run for the
// longest.
Fragment* Machine::pick(Group& g, bool oldest) {
  Fragment* best = nullptr;
  for (const auto& p : g.fragments) {
    if (p->state != FragmentState::ready) continue;
    if (best == nullptr || (oldest ? p->last_run < best->last_run
                                   : p->calls.size() > best->calls.size() ||
                                         (p->calls.size() == best->calls.size() && p->pc < best->pc)))
      best = p.get();
  }
  return best;
}

bool Machine::out_of_time() {
  if (shared_.stop.load(std::memory_order_relaxed)) return cancelled = true;
  if (shared_.launch.cancel != nullptr && shared_.launch.cancel->raised()) return cancelled = true;
  return false;
}

// Runs the group's fragments until none is ready, or for one slice. False after a fault.
bool Machine::run_group(Group& g) {
  bool oldest = false;
  left_ = slice;
  while (true) {
    Fragment* f = pick(g, oldest);
    if (f == nullptr) return true;
    absorb(g, *f);
    std::uint32_t limit = no_slot;
    for (const auto& other : g.fragments)
      if (other.get() != f && other->state == FragmentState::ready && other->pc > f->pc &&
          other->calls == f->calls)
        limit = std::min(limit, other->pc);
    const bool alone = g.fragments.size() == 1;
    f->last_run = ++turns_;
    switch (run_fragment(g, *f, limit)) {
      case Stop::failed:
        return false;
      case Stop::reschedule:
        oldest = false;
        break;
      case Stop::budget:
        left_ = slice;
        if (out_of_time()) return false;
        if (alone) return true;  // let the other groups of the block have a turn
        oldest = !oldest;
        if (!oldest) return true;
        break;
    }
  }
}

bool Machine::block_barrier(Group& g, Fragment& f, const Inst& i) {
  const auto* ids = at<std::uint32_t>(g, i.a);
  unsigned first = f.low;
  while (!f.mask[first]) ++first;
  const std::uint32_t id = ids[first];
  alignas(64) std::uint8_t others[group_lanes] = {};
  bool differ = false;
  for (unsigned lane = f.low; lane < f.high; ++lane)
    if (f.mask[lane] && ids[lane] != id) others[lane] = 1, differ = true;
  if (differ) split(g, f, others);
  const std::uint32_t expected = i.b == no_slot ? 0 : at<std::uint32_t>(g, i.b)[first];
  if (id >= barriers_per_block || expected % warp_lanes != 0 || (i.b != no_slot && expected == 0)) {
    fail(g, first, i, Status::illegal_instruction,
         "barrier " + std::to_string(id) + " for " + std::to_string(expected) +
             " threads: there are 16 barriers, for multiples of 32");
    return false;
  }
  barriers_[id].expected = expected;
  ++f.pc;
  if (static_cast<ptx::BarrierMode>(i.mode) == ptx::BarrierMode::arrive) {
    barriers_[id].arrived += f.active;
    return true;
  }
  f.state = FragmentState::at_block_barrier;
  f.barrier = id;
  f.waiting_at = static_cast<std::uint32_t>(&i - code_.insts.data());
  return true;
}

// bar.red: combines the predicates of all that wait at the barrier and hands out the result.
void Machine::finish_reduction(std::uint32_t id) {
  std::uint32_t ones = 0, all = 0;
  const auto each = [&](auto visit) {
    for (const auto& g : groups_)
      for (const auto& f : g->fragments) {
        const Inst& i = code_.insts[f->waiting_at];
        if (f->state != FragmentState::at_block_barrier || f->barrier != id || i.d == no_slot) continue;
        for (unsigned lane = f->low; lane < f->high; ++lane)
          if (f->mask[lane]) visit(*g, i, lane);
      }
  };
  each([&](Group& g, const Inst& i, unsigned lane) {
    ones += at<std::uint8_t>(g, i.c)[lane];
    ++all;
  });
  each([&](Group& g, const Inst& i, unsigned lane) {
    const auto mode = static_cast<ptx::BarrierMode>(i.mode);
    if (mode == ptx::BarrierMode::popc)
      at<std::uint32_t>(g, i.d)[lane] = ones;
    else
      at<std::uint8_t>(g, i.d)[lane] = mode == ptx::BarrierMode::and_ ? ones == all : ones != 0;
  });
}

// Opens each barrier at which all expected threads stand. True when one was.
bool Machine::release_barriers() {
  std::uint32_t waiting[barriers_per_block] = {};
  std::uint32_t live = 0;
  for (const auto& g : groups_) {
    live += g->live;
    for (const auto& f : g->fragments)
      if (f->state == FragmentState::at_block_barrier) waiting[f->barrier] += f->active;
  }
  bool released = false;
  for (std::uint32_t id = 0; id < barriers_per_block; ++id) {
    if (waiting[id] == 0) continue;
    Barrier& b = barriers_[id];
    const std::uint32_t here = waiting[id] + b.arrived;
    if (here < (b.expected != 0 ? std::min(b.expected, live + b.arrived) : live)) continue;
    finish_reduction(id);
    b.arrived = 0;
    released = true;
    for (const auto& g : groups_)
      for (const auto& f : g->fragments)
        if (f->state == FragmentState::at_block_barrier && f->barrier == id) f->state = FragmentState::ready;
  }
  return released;
}

bool Machine::deadlock() {
  std::string who;
  Group* at_group = nullptr;
  Fragment* at_fragment = nullptr;
  for (const auto& g : groups_)
    for (const auto& f : g->fragments) {
      const bool block = f->state == FragmentState::at_block_barrier;
      const auto line = code_.insts[f->waiting_at].line;
      if (at_group == nullptr) at_group = g.get(), at_fragment = f.get();
      if (who.size() > 400) continue;
      if (!who.empty()) who += ", ";
      who += std::to_string(f->active) + (f->active == 1 ? " thread" : " threads") +
             (block ? " at barrier " + std::to_string(f->barrier) : std::string(" at a warp instruction")) +
             " (PTX line " + std::to_string(line) + ")";
    }
  if (at_fragment == nullptr) return false;  // nothing waits: the block is over
  const auto lane = static_cast<unsigned>(std::find(at_fragment->mask, at_fragment->mask + group_lanes, 1) -
                                          at_fragment->mask);
  fail(*at_group, lane, code_.insts[at_fragment->waiting_at], Status::launch_failed,
       "deadlock: all threads wait, " + who);
  return false;
}

bool Machine::run_block(std::uint64_t index) {
  start_block(index);
  while (true) {
    bool ran = false, alive = false;
    for (const auto& g : groups_) {
      if (pick(*g, false) != nullptr) {
        ran = true;
        if (!run_group(*g)) return false;
      }
      alive |= !g->fragments.empty();
    }
    if (!alive) return true;
    if (release_barriers()) continue;
    if (ran) {
      if (out_of_time()) return false;
      continue;
    }
    bool released = false;
    for (const auto& g : groups_) released |= release_warp_barriers(*g);
    if (!released) return deadlock();
  }
}

}  // namespace cenote::cuda::emulator
