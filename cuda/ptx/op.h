// The names of decoded instructions and of their modes. Only enumerations: the lane loops are compiled once
// for every vector width, and an inline function in here could be taken from the wrong one by the linker.
#pragma once

#include <cstdint>

namespace cenote::cuda::ptx {

/// What happens in every lane by itself comes from ops.def (and the conversions); what needs memory, other
/// lanes or control follows.
enum class Op : std::uint16_t {
#define CENOTE_OP(name, ...) name,
#include "cuda/ptx/ops.def"
#undef CENOTE_OP
  convert,  ///< + to * number_types + from
  lanes_end = convert + 12 * 12,
  load = lanes_end,
  store,
  load_slot,  // of a function's .param variable
  store_slot,
  atomic,
  shuffle,
  vote,
  match,
  active_mask,
  warp_barrier,
  block_barrier,
  branch,
  call,
  return_,
  exit,
  trap,
  special,       // a special register that changes while the kernel runs
  to_generic,    // cvta
  from_generic,  // cvta.to
  is_space,      // isspacep
  print,         // call of vprintf
  assert_fail,   // call of __assertfail
  nop,           // fences, prefetches: the emulator executes memory operations in order
};

/// Number types that cvt knows. The order is part of Op::convert's arithmetic.
enum class Num : std::uint8_t { u8, s8, u16, s16, u32, s32, u64, s64, f16, bf16, f32, f64 };
inline constexpr unsigned number_types = 12;

/// Rounding of a conversion. The `i` forms round to an integral value.
enum class Round : std::uint8_t { none, rn, rz, rm, rp, rni, rzi, rmi, rpi };

enum class Space : std::uint8_t { generic, global, constant, shared, local, param };

enum class AtomicOp : std::uint8_t { add, min, max, inc, dec, and_, or_, xor_, exch, cas };
enum class ShuffleMode : std::uint8_t { up, down, bfly, idx };
enum class VoteMode : std::uint8_t { all, any, uni, ballot };
enum class BarrierMode : std::uint8_t { sync, arrive, popc, and_, or_ };

enum class Special : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  dynamic_smem_size,
  total_smem_size,
  envreg,
  clock,
  clock_hi,
  clock64,
  globaltimer,
  globaltimer_lo,
  globaltimer_hi,
};

}  // namespace cenote::cuda::ptx
