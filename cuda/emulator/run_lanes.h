// Loops over the lanes of a group, one function for each instruction of ops.def, compiled for several vector
// widths with the same results. Declarations only: see cuda/ptx/op.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote::cuda::emulator {

/// Operands of one instruction: each points at the value of the first lane. Values that are not of the same
/// width never overlap; a result may be one of the sources.
struct LaneArgs {
  std::byte* d;
  const std::byte* a;
  const std::byte* b;
  const std::byte* c;
  const std::byte* e;
  unsigned n;         ///< lanes, a multiple of 32
  std::uint8_t mode;  ///< ptx::Round, for conversions
  bool saturate;      ///< for conversions
};
using LaneFunction = void (*)(const LaneArgs&);

/// What the addresses of the lanes whose mask is not 0 have in common.
struct AddressScan {
  std::uint64_t lowest;
  std::uint64_t highest;
  std::uint64_t ored;  ///< all or-ed together: the low bits tell whether any is misaligned
  bool consecutive;    ///< address of lane i = address of lane 0 + i * step, for every lane, active or not
};

/// One vector width.
struct LaneTable {
  const char* name;
  const LaneFunction* functions;  ///< indexed by ptx::Op below lanes_end
  /// to[i] = mask[i] ? from[i] : to[i], for values of 1 << index bytes.
  void (*const blend[4])(std::byte* to, const std::byte* from, const std::uint8_t* mask, unsigned n);
  /// out[i] = base[i] + offset, where base has 4 or 8 bytes an element, or is null for 0.
  AddressScan (*addresses)(std::uint64_t* out, const std::byte* base, unsigned width, std::uint64_t offset,
                           const std::uint8_t* mask, unsigned n, unsigned step);
  /// out[i] = mask[i] & (value[i] ^ negated); returns how many are 1.
  unsigned (*guard)(std::uint8_t* out, const std::uint8_t* mask, const std::uint8_t* value, bool negated,
                    unsigned n);
};

extern const LaneTable lanes_base;
#if defined(__x86_64__)
extern const LaneTable lanes_avx2;
extern const LaneTable lanes_avx512;
#endif

/// The widest table that this processor runs.
const LaneTable& best_lanes();

}  // namespace cenote::cuda::emulator
