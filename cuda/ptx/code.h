// Code: decoded instructions. Registers are numbered slots of a file laid out [slot][lane]; control flow is
// indices into one array. Written by the decoder, read by the emulator; nobody else looks inside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/ptx/op.h"

namespace cenote::cuda::ptx {

/// Place of an operand: bytes per lane from the start of the register area, or of the constant area when the
/// top bit is set.
using Slot = std::uint32_t;
inline constexpr Slot constant_bit = 0x8000'0000u;
inline constexpr Slot no_slot = 0xFFFF'FFFFu;

struct Inst {
  Op op = Op::nop;
  Num type = Num::u32;     ///< of a memory access; signed = sign extension
  std::uint8_t mode = 0;   ///< Round, AtomicOp, ShuffleMode, VoteMode, BarrierMode, Special or a flag, by op
  std::uint8_t count = 1;  ///< elements of a vector access
  Space space = Space::generic;
  bool guard_negated = false;
  bool saturate = false;
  std::uint8_t width_d = 0;  ///< bytes of the destination register (memory operations)
  std::uint8_t width_a = 0;  ///< bytes of the address register
  bool ordered = false;      ///< volatile, relaxed, acquire, release: one access, not torn
  std::uint32_t line = 0;
  std::uint32_t list = 0;  ///< first of `count` slots in Code::lists: vector elements, copies of a call
  Slot guard = no_slot;
  Slot d = no_slot, a = no_slot, b = no_slot, c = no_slot, e = no_slot;
  Slot d2 = no_slot;     ///< the predicate of shfl
  std::int64_t imm = 0;  ///< address offset, target of a branch
};

/// Bytes of the operands of an op of ops.def; 0 = it has none.
struct Shape {
  std::uint8_t d, a, b, c, e;
};
extern const std::array<Shape, static_cast<std::size_t>(Op::convert)> shapes;

/// What the constant area holds at `slot`, written before the first instruction.
struct Constant {
  enum class Kind : std::uint8_t { literal, variable, shared, special, param };
  Kind kind = Kind::literal;
  std::uint8_t bytes = 4;
  Special special = Special::tid_x;
  Slot slot = 0;               ///< without constant_bit
  std::uint64_t value = 0;     ///< the literal, the addend, or the offset of a parameter
  std::uint32_t variable = 0;  ///< index into Program::variables or Code::shared
};

/// One function or kernel. Functions called have their register, local and parameter places assigned
/// statically (above those of their callers), so recursion is refused by the decoder.
struct Function {
  std::string name;
  bool is_entry = false;
  std::uint32_t first = 0;  ///< its first instruction
  std::uint32_t last = 0;   ///< one past its last
  std::vector<Constant> constants;
  std::vector<std::uint32_t> callees;  ///< all functions reachable from here, not only the direct ones
  std::vector<std::uint32_t> shared;   ///< the shared variables that its own instructions name, sorted
  // Ends, per lane, of what it and its callees use of the register area, the constant area and local memory:
  std::uint32_t register_bytes = 0;
  std::uint32_t constant_bytes = 0;
  std::uint32_t local_bytes = 0;
};

/// A `.shared` variable. Each kernel lays out those that it and its callees name, in this order; the external
/// ones (dynamic shared memory) all start behind them.
struct SharedVariable {
  std::string name;
  std::size_t size = 0;
  std::size_t align = 1;
  bool dynamic = false;
};

struct Code {
  std::vector<SharedVariable> shared;
  std::vector<Inst> insts;
  std::vector<Slot> lists;
  std::vector<Function> functions;
  std::vector<std::uint32_t> entry_functions;  ///< Program::entries[i] is functions[entry_functions[i]]
};

/// Offset of each shared variable for one kernel (those not named stay 0), and where dynamic shared memory
/// starts.
struct SharedLayout {
  std::vector<std::uint32_t> offsets;
  std::size_t static_bytes = 0;
};
SharedLayout shared_layout(const Code& code, const Function& entry);

constexpr unsigned bytes_of(Num type) {
  switch (type) {
    case Num::u8:
    case Num::s8:
      return 1;
    case Num::u16:
    case Num::s16:
    case Num::f16:
    case Num::bf16:
      return 2;
    case Num::u32:
    case Num::s32:
    case Num::f32:
      return 4;
    case Num::u64:
    case Num::s64:
    case Num::f64:
      return 8;
  }
  return 8;
}
constexpr bool is_signed(Num t) { return t == Num::s8 || t == Num::s16 || t == Num::s32 || t == Num::s64; }
constexpr bool is_float(Num t) { return t >= Num::f16; }

}  // namespace cenote::cuda::ptx
