// atom and red: lane after lane, so that within a group the order is that of the thread indices.
#include <bit>
#include <cstring>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::AtomicOp;
using ptx::Inst;
using ptx::no_slot;
using ptx::Num;
using ptx::Op;

namespace {

template <class T>
T combine(AtomicOp op, T old, T b, bool is_signed) {
  using S = std::make_signed_t<T>;
  const bool less = is_signed ? static_cast<S>(old) < static_cast<S>(b) : old < b;
  switch (op) {
    case AtomicOp::add:
      return static_cast<T>(old + b);
    case AtomicOp::min:
      return less ? old : b;
    case AtomicOp::max:
      return less ? b : old;
    case AtomicOp::inc:
      return old >= b ? T{0} : static_cast<T>(old + 1);
    case AtomicOp::dec:
      return old == 0 || old > b ? b : static_cast<T>(old - 1);
    case AtomicOp::and_:
      return old & b;
    case AtomicOp::or_:
      return old | b;
    case AtomicOp::xor_:
      return old ^ b;
    default:
      return b;
  }
}

template <class T>
T atomic_update(T* at, const auto& next) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, next(old), true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace

bool Machine::atomic(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask) {
  const unsigned size = bytes_of(i.type);
  const auto op = static_cast<AtomicOp>(i.mode);
  lanes_.addresses(addresses_ + f.low, i.a == no_slot ? nullptr : at(g, i.a) + std::size_t{f.low} * i.width_a,
                   i.a == no_slot ? 0 : i.width_a, static_cast<std::uint64_t>(i.imm), mask + f.low,
                   f.high - f.low, size);
  // Float sums go through the same rows as add.f32 and its kin.
  const Op row = i.type == Num::f32   ? Op::add_f32
                 : i.type == Num::f64 ? Op::add_f64
                 : i.type == Num::f16 ? Op::add_f16
                                      : Op::add_bf16;
  const auto float_sum = [&]<class T>(T old, T b) {
    alignas(64) std::byte a_lanes[warp_lanes * 8] = {}, b_lanes[warp_lanes * 8] = {};
    std::memcpy(a_lanes, &old, sizeof old);
    std::memcpy(b_lanes, &b, sizeof b);
    lanes_.functions[static_cast<std::size_t>(row)](
        {a_lanes, a_lanes, b_lanes, nullptr, nullptr, warp_lanes, 0, false});
    T sum;
    std::memcpy(&sum, a_lanes, sizeof sum);
    return sum;
  };
  const auto lanes_of = [&]<class T>(T) {
    const T *b = at<T>(g, i.b), *c = i.c == no_slot ? nullptr : at<T>(g, i.c);
    T* d = i.d == no_slot ? nullptr : at<T>(g, i.d);
    for (unsigned lane = f.low; lane < f.high; ++lane) {
      if (!mask[lane]) continue;
      const char* why = "";
      std::byte* to = lane_access(g, i.space, lane, addresses_[lane], size, true, &why);
      if (to == nullptr)
        return access_fault(g, i, lane, size, "atomic access", why, (addresses_[lane] & (size - 1)) != 0);
      T* word = reinterpret_cast<T*>(to);
      const T value = b[lane];
      T old{};
      if (op == AtomicOp::cas && c != nullptr) {
        old = value;
        __atomic_compare_exchange_n(word, &old, c[lane], false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
      } else if (op == AtomicOp::exch) {
        old = __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
      } else if (is_float(i.type)) {
        old = atomic_update(word, [&](T before) { return float_sum(before, value); });
      } else {
        old = atomic_update(word, [&](T before) { return combine(op, before, value, is_signed(i.type)); });
      }
      if (d != nullptr) d[lane] = old;
    }
    return true;
  };
  if (size == 2) return lanes_of(std::uint16_t{});
  return size == 4 ? lanes_of(std::uint32_t{}) : lanes_of(std::uint64_t{});
}

}  // namespace cenote::cuda::emulator
