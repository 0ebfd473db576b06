// Executes one fragment, instruction by instruction.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::Inst;
using ptx::no_slot;
using ptx::Op;

namespace {

bool moves_control(Op op) {
  switch (op) {
    case Op::shuffle:
    case Op::vote:
    case Op::match:
    case Op::warp_barrier:
    case Op::block_barrier:
    case Op::branch:
    case Op::call:
    case Op::return_:
    case Op::exit:
    case Op::trap:
      return true;
    default:
      return false;
  }
}
}  // namespace

void Machine::run_lane_op(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask, bool whole) {
  const auto op = static_cast<std::size_t>(i.op);
  ptx::Shape shape{};
  if (i.op < Op::convert) {
    shape = ptx::shapes[op];
  } else {
    const auto pair = op - static_cast<std::size_t>(Op::convert);
    shape.d = static_cast<std::uint8_t>(bytes_of(static_cast<ptx::Num>(pair / ptx::number_types)));
    shape.a = static_cast<std::uint8_t>(bytes_of(static_cast<ptx::Num>(pair % ptx::number_types)));
  }
  const unsigned low = f.low, n = f.high - low;
  LaneArgs args{};
  std::byte* const result = at(g, i.d) + std::size_t{low} * shape.d;
  args.d = whole ? result : scratch_;
  args.a = at(g, i.a) + std::size_t{low} * shape.a;
  if (shape.b != 0) args.b = at(g, i.b) + std::size_t{low} * shape.b;
  if (shape.c != 0) args.c = at(g, i.c) + std::size_t{low} * shape.c;
  if (shape.e != 0) args.e = at(g, i.e) + std::size_t{low} * shape.e;
  args.n = n;
  args.mode = i.mode;
  args.saturate = i.saturate;
  lanes_.functions[op](args);
  if (whole) return;
  const unsigned log = shape.d == 1 ? 0 : shape.d == 2 ? 1 : shape.d == 4 ? 2 : 3;
  lanes_.blend[log](result, scratch_, mask + low, n);
}

void Machine::run_special(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask) {
  const auto s = static_cast<ptx::Special>(i.mode);
  const auto ns = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                 std::chrono::system_clock::now().time_since_epoch())
                                                 .count());
  std::uint64_t value = clock_;
  if (s == ptx::Special::clock_hi) value = clock_ >> 32;
  if (s == ptx::Special::globaltimer || s == ptx::Special::globaltimer_lo) value = ns;
  if (s == ptx::Special::globaltimer_hi) value = ns >> 32;
  std::byte* d = at(g, i.d);
  for (unsigned lane = f.low; lane < f.high; ++lane)
    if (mask[lane]) std::memcpy(d + std::size_t{lane} * i.width_d, &value, i.width_d);
}

void Machine::exit_lanes(Group& g, Fragment& f) {
  for (unsigned lane = f.low; lane < f.high; ++lane)
    if (f.mask[lane]) g.live_mask[lane] = 0;
  g.live -= f.active;
  drop(g, f);
  for (auto& other : g.fragments)
    if (other->state == FragmentState::at_warp_barrier) other->state = FragmentState::ready;
}

// Instructions that move lanes between fragments, or need them together. All lanes of `f` take part.
Machine::Stop Machine::control(Group& g, Fragment& f, const Inst& i) {
  switch (i.op) {
    case Op::branch:
      f.pc = static_cast<std::uint32_t>(i.imm);
      return Stop::reschedule;
    case Op::call:
      f.calls.push_back(f.pc + 1);
      f.pc = static_cast<std::uint32_t>(i.imm);
      return Stop::reschedule;
    case Op::return_:
      f.pc = f.calls.back();
      f.calls.pop_back();
      return Stop::reschedule;
    case Op::exit:
      exit_lanes(g, f);
      return Stop::reschedule;
    case Op::trap: {
      const auto lane = static_cast<unsigned>(std::find(f.mask, f.mask + group_lanes, 1) - f.mask);
      fail(g, lane, i, Status::launch_failed, "trap instruction");
      return Stop::failed;
    }
    case Op::block_barrier:
      return block_barrier(g, f, i) ? Stop::reschedule : Stop::failed;
    default:
      break;
  }
  if (!gather_warps(g, f, i)) return Stop::reschedule;
  if (i.op == Op::shuffle)
    shuffle(g, f, i);
  else if (i.op == Op::vote)
    vote(g, f, i);
  else if (i.op == Op::match)
    match(g, f, i);
  ++f.pc;
  return Stop::reschedule;
}

// Runs until the fragment's place relative to the others may have changed: it reached `limit`, where another
// one stands, split, or the slice is spent.
Machine::Stop Machine::run_fragment(Group& g, Fragment& f, std::uint32_t limit) {
  while (true) {
    if (f.pc >= limit) return Stop::reschedule;
    if (left_ == 0) return Stop::budget;
    --left_;
    const Inst& i = code_.insts[f.pc];
    const std::uint8_t* mask = f.mask;
    unsigned active = f.active;
    bool whole = active == g.live;
    ++clock_;
    if (i.guard != no_slot) {
      active = lanes_.guard(guarded_ + f.low, f.mask + f.low, at<std::uint8_t>(g, i.guard) + f.low,
                            i.guard_negated, f.high - f.low);
      lane_instructions += active;
      if (active == 0) {
        ++f.pc;
        continue;
      }
      if (active != f.active) {
        if (moves_control(i.op)) {
          Fragment& leaving = split(g, f, guarded_);
          ++f.pc;
          if (i.op == Op::branch)
            leaving.pc = static_cast<std::uint32_t>(i.imm);
          else if (control(g, leaving, i) == Stop::failed)
            return Stop::failed;
          return Stop::reschedule;
        }
        mask = guarded_;
        whole = false;
      }
    } else {
      lane_instructions += active;
    }
    if (i.op < Op::lanes_end) {
      run_lane_op(g, f, i, mask, whole);
      ++f.pc;
      continue;
    }
    bool good = true;
    switch (i.op) {
      case Op::branch: {
        const bool back = static_cast<std::uint32_t>(i.imm) <= f.pc;
        f.pc = static_cast<std::uint32_t>(i.imm);
        if (back && limit != no_slot) return Stop::reschedule;
        continue;
      }
      case Op::load:
        good = load(g, f, i, mask, active);
        break;
      case Op::store:
        good = store(g, f, i, mask, active);
        break;
      case Op::load_slot:
      case Op::store_slot:
        move_slot(g, f, i, mask);
        break;
      case Op::atomic:
        good = atomic(g, f, i, mask);
        break;
      case Op::special:
        run_special(g, f, i, mask);
        break;
      case Op::to_generic:
      case Op::from_generic:
      case Op::is_space:
        convert_address(g, f, i, mask);
        break;
      case Op::print:
      case Op::assert_fail:
        good = print(g, f, i, mask);
        break;
      case Op::active_mask: {
        auto* d = at<std::uint32_t>(g, i.d);
        for (unsigned warp = f.low; warp < f.high; warp += warp_lanes) {
          std::uint32_t bits = 0;
          for (unsigned lane = 0; lane < warp_lanes; ++lane) bits |= std::uint32_t{mask[warp + lane]} << lane;
          for (unsigned lane = 0; lane < warp_lanes; ++lane)
            if (mask[warp + lane]) d[warp + lane] = bits;
        }
        break;
      }
      case Op::nop:
        break;
      default:
        return control(g, f, i);
    }
    if (!good) return Stop::failed;
    ++f.pc;
  }
}

}  // namespace cenote::cuda::emulator
