// The kernels' source, included once by each width's file. Everything has internal linkage and uses the
// language alone: a std:: inline function compiled here with AVX-512 could otherwise be the copy that the
// linker keeps for the whole program. Loops are branch-free, for the compiler to vectorise.
//
// The including file defines CENOTE_HALF_HARDWARE where F16C can be used, and gives `all_kernels` to the
// others under the name of its width.

#include "collectives/reduce/kernels.h"

#ifdef CENOTE_HALF_HARDWARE
#include <immintrin.h>
#endif

#if defined(__clang__)
#define CENOTE_VECTORISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define CENOTE_VECTORISE _Pragma("GCC ivdep")
#endif

namespace cenote::collectives::detail {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class To, class From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

// Element types: how a value is stored, the type it is computed in, and the way between.

struct Float32 {
  using Stored = float;
  using Wide = float;
  using Signed = std::int32_t;
  static constexpr u32 nan = 0x7fffffffU;
  static constexpr int sign_shift = 31;
  static constexpr u32 magnitude = 0x7fffffffU, infinity = 0x7f800000U;
  static Wide widen(Stored x) { return x; }
  static Stored narrow(Wide x) { return bits<float>(x == x ? bits<u32>(x) : nan); }
};

struct Float64 {
  using Stored = double;
  using Wide = double;
  using Signed = std::int64_t;
  static constexpr u64 nan = 0x7fffffffffffffffULL;
  static constexpr int sign_shift = 63;
  static constexpr u64 magnitude = 0x7fffffffffffffffULL, infinity = 0x7ff0000000000000ULL;
  static Wide widen(Stored x) { return x; }
  static Stored narrow(Wide x) { return bits<double>(x == x ? bits<u64>(x) : nan); }
};

struct BFloat16 {
  using Stored = u16;
  using Wide = float;
  using Signed = std::int16_t;
  static constexpr u16 nan = 0x7fff;
  static constexpr int sign_shift = 15;
  static constexpr u16 magnitude = 0x7fff, infinity = 0x7f80;
  static Wide widen(Stored x) { return bits<float>(static_cast<u32>(x) << 16); }
  static Stored narrow(Wide x) {
    const u32 u = bits<u32>(x);
    const u32 rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    return static_cast<u16>((u & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
};

struct Float16 {
  using Stored = u16;
  using Wide = float;
  using Signed = std::int16_t;
  static constexpr u16 nan = 0x7fff;
  static constexpr int sign_shift = 15;
  static constexpr u16 magnitude = 0x7fff, infinity = 0x7c00;
  static Wide widen(Stored x) {
    const u32 sign = (static_cast<u32>(x) & 0x8000U) << 16;
    const u32 m = static_cast<u32>(x) & 0x7fffU;
    // Normal: shift the fields into place and correct the exponent's bias. Subnormal: an exact multiple of
    // 2^-24.
    const u32 normal = (m << 13) + (112U << 23);
    const u32 special = (m << 13) + (224U << 23);
    const u32 tiny = bits<u32>(static_cast<float>(static_cast<std::int32_t>(m)) * 0x1p-24F);
    const u32 magnitude_bits = m >= 0x7c00U ? special : (m < 0x400U ? tiny : normal);
    return bits<float>(sign | magnitude_bits);
  }
  static Stored narrow(Wide x) {
    const u32 u = bits<u32>(x);
    const u32 sign = (u >> 16) & 0x8000U;
    const u32 m = u & 0x7fffffffU;
    // Subnormal results: adding 0.5 makes the hardware round at 2^-24, to nearest even.
    const u32 tiny = bits<u32>(bits<float>(m) + 0.5F) - 0x3f000000U;
    const u32 normal = (m - (112U << 23) + 0xfffU + ((m >> 13) & 1U)) >> 13;
    const u32 finite = m < 0x38800000U ? tiny : normal;
    const u32 clamped = m >= 0x477ff000U ? 0x7c00U : finite;  // 65520 and above round to infinity
    return static_cast<u16>(m > 0x7f800000U ? nan : (sign | clamped));
  }
};

// Signed integers are summed as unsigned ones: that is what wrapping around is.
struct Int32 {
  using Stored = std::int32_t;
  using Unsigned = u32;
};
struct Int64 {
  using Stored = std::int64_t;
  using Unsigned = u64;
};

// Operations.

template <class T>
struct FloatSum {
  static typename T::Stored apply(typename T::Stored a, typename T::Stored b) {
    return T::narrow(T::widen(a) + T::widen(b));
  }
};

/// minimum and maximum on the bits: read as sign and magnitude, floats are ordered like integers, -0 below
/// +0.
template <class T, bool want_less>
struct FloatPick {
  using Signed = typename T::Signed;
  static Signed ordered(Signed x) {
    return static_cast<Signed>(x ^ ((x >> T::sign_shift) & static_cast<Signed>(T::magnitude)));
  }
  static bool is_nan(Signed x) {
    return static_cast<Signed>(x & static_cast<Signed>(T::magnitude)) > static_cast<Signed>(T::infinity);
  }
  static typename T::Stored apply(typename T::Stored fa, typename T::Stored fb) {
    const Signed a = bits<Signed>(fa);
    const Signed b = bits<Signed>(fb);
    const bool a_less = ordered(a) < ordered(b);
    const Signed picked = a_less == want_less ? a : b;
    // Not a && or ||: both sides are cheap, and a branch would keep the loop scalar.
    const bool bad = static_cast<bool>(static_cast<int>(is_nan(a)) | static_cast<int>(is_nan(b)));
    return bits<typename T::Stored>(bad ? static_cast<Signed>(T::nan) : picked);
  }
};

template <class T>
struct IntSum {
  static typename T::Stored apply(typename T::Stored a, typename T::Stored b) {
    return static_cast<typename T::Stored>(static_cast<typename T::Unsigned>(a) +
                                           static_cast<typename T::Unsigned>(b));
  }
};

template <class T, bool want_less>
struct IntPick {
  static typename T::Stored apply(typename T::Stored a, typename T::Stored b) {
    return (a < b) == want_less ? a : b;
  }
};

// memcpy for a load: user buffers need not be aligned.
template <class S>
inline S load(const unsigned char* from) {
  S value;
  __builtin_memcpy(&value, from, sizeof(S));
  return value;
}
template <class S>
inline void store(unsigned char* to, S value) {
  __builtin_memcpy(to, &value, sizeof(S));
}

template <class T, class Op>
void reduce_loop(void* dst, const void* a, const void* b, std::size_t count) {
  using S = typename T::Stored;
  auto* out = static_cast<unsigned char*>(dst);
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  CENOTE_VECTORISE
  for (std::size_t i = 0; i < count; ++i) {
    store<S>(out + i * sizeof(S), Op::apply(load<S>(x + i * sizeof(S)), load<S>(y + i * sizeof(S))));
  }
}

template <class T>
void divide_loop(void* values, std::size_t count, std::uint32_t divisor) {
  using S = typename T::Stored;
  auto* x = static_cast<unsigned char*>(values);
  const auto by = static_cast<typename T::Wide>(divisor);
  CENOTE_VECTORISE
  for (std::size_t i = 0; i < count; ++i) {
    store<S>(x + i * sizeof(S), T::narrow(T::widen(load<S>(x + i * sizeof(S))) / by));
  }
}

template <class T>
void divide_int(void* values, std::size_t count, std::uint32_t divisor) {
  using S = typename T::Stored;
  auto* x = static_cast<unsigned char*>(values);
  const auto by = static_cast<std::int64_t>(divisor);
  for (std::size_t i = 0; i < count; ++i) {
    store<S>(x + i * sizeof(S), static_cast<S>(load<S>(x + i * sizeof(S)) / by));
  }
}

#ifdef CENOTE_HALF_HARDWARE
// Eight halves at a time through F16C; the tail through the portable code, which gives the same bits.
template <class Combine>
inline std::size_t half_blocks(unsigned char* out, const unsigned char* a, std::size_t count,
                               Combine combine) {
  const __m128i nans = _mm_set1_epi16(0x7fff);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 wide = combine(_mm256_cvtph_ps(load<__m128i>(a + i * 2)), i);
    const __m128i narrow = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i unordered = _mm256_castps_si256(_mm256_cmp_ps(wide, wide, _CMP_UNORD_Q));
    const __m128i is_nan =
        _mm_packs_epi32(_mm256_castsi256_si128(unordered), _mm256_extracti128_si256(unordered, 1));
    store<__m128i>(out + i * 2, _mm_blendv_epi8(narrow, nans, is_nan));
  }
  return i;
}

inline void half_sum(void* dst, const void* a, const void* b, std::size_t count) {
  auto* out = static_cast<unsigned char*>(dst);
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  const auto done = half_blocks(out, x, count, [y](__m256 wide, std::size_t i) {
    return _mm256_add_ps(wide, _mm256_cvtph_ps(load<__m128i>(y + i * 2)));
  });
  reduce_loop<Float16, FloatSum<Float16>>(out + done * 2, x + done * 2, y + done * 2, count - done);
}

inline void half_divide(void* values, std::size_t count, std::uint32_t divisor) {
  auto* x = static_cast<unsigned char*>(values);
  const __m256 by = _mm256_set1_ps(static_cast<float>(divisor));
  const auto done =
      half_blocks(x, x, count, [by](__m256 wide, std::size_t) { return _mm256_div_ps(wide, by); });
  divide_loop<Float16>(x + done * 2, count - done, divisor);
}
#else
inline void half_sum(void* dst, const void* a, const void* b, std::size_t count) {
  reduce_loop<Float16, FloatSum<Float16>>(dst, a, b, count);
}
inline void half_divide(void* x, std::size_t count, std::uint32_t divisor) {
  divide_loop<Float16>(x, count, divisor);
}
#endif

inline constexpr KernelTable all_kernels = {
    {
        {reduce_loop<Float32, FloatSum<Float32>>, reduce_loop<Float32, FloatPick<Float32, true>>,
         reduce_loop<Float32, FloatPick<Float32, false>>},
        {reduce_loop<Float64, FloatSum<Float64>>, reduce_loop<Float64, FloatPick<Float64, true>>,
         reduce_loop<Float64, FloatPick<Float64, false>>},
        {half_sum, reduce_loop<Float16, FloatPick<Float16, true>>,
         reduce_loop<Float16, FloatPick<Float16, false>>},
        {reduce_loop<BFloat16, FloatSum<BFloat16>>, reduce_loop<BFloat16, FloatPick<BFloat16, true>>,
         reduce_loop<BFloat16, FloatPick<BFloat16, false>>},
        {reduce_loop<Int32, IntSum<Int32>>, reduce_loop<Int32, IntPick<Int32, true>>,
         reduce_loop<Int32, IntPick<Int32, false>>},
        {reduce_loop<Int64, IntSum<Int64>>, reduce_loop<Int64, IntPick<Int64, true>>,
         reduce_loop<Int64, IntPick<Int64, false>>},
    },
    {divide_loop<Float32>, divide_loop<Float64>, half_divide, divide_loop<BFloat16>, divide_int<Int32>,
     divide_int<Int64>},
};

}  // namespace
}  // namespace cenote::collectives::detail
