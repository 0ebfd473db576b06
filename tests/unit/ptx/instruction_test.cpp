// Every instruction against plain C++, on edge values. A new instruction is a new row.
#include "tests/unit/ptx/instruction.h"

#include <numeric>

namespace cenote::cuda::testing {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
__extension__ using u128 = unsigned __int128;
__extension__ using s128 = __int128;

template <class T>
void unary(const std::string& op, auto f) {
  check_instruction<decltype(f(T{}))>(op + " $d, $a;", f, edge_values<T>());
}
template <class T>
void binary(const std::string& op, auto f) {
  check_instruction<decltype(f(T{}, T{}))>(op + " $d, $a, $b;", f, edge_values<T>(), edge_values<T>());
}
template <class T>
void ternary(const std::string& op, auto f) {
  check_instruction<decltype(f(T{}, T{}, T{}))>(op + " $d, $a, $b, $c;", f, edge_values<T>(),
                                                edge_values<T>(), edge_values<T>());
}
template <class T>
void shift(const std::string& op, auto f) {
  check_instruction<T>(op + " $d, $a, $b;", f, edge_values<T>(), edge_values<u32>());
}
template <class T>
void compare(const std::string& op, auto f) {
  check_instruction<u32>(
      op + " %p1, $a, $b; selp.u32 $d, 1, 0, %p1;", [f](T a, T b) { return u32{f(a, b)}; }, edge_values<T>(),
      edge_values<T>());
}

TEST(Integers, AddSubtractMultiplyWrapAround) {
  binary<u16>("add.s16", [](u16 a, u16 b) { return u16(a + b); });
  binary<u32>("add.u32", [](u32 a, u32 b) { return a + b; });
  binary<u64>("add.s64", [](u64 a, u64 b) { return a + b; });
  binary<u16>("sub.u16", [](u16 a, u16 b) { return u16(a - b); });
  binary<u32>("sub.s32", [](u32 a, u32 b) { return a - b; });
  binary<u64>("sub.u64", [](u64 a, u64 b) { return a - b; });
  binary<u16>("mul.lo.s16", [](u16 a, u16 b) { return u16(u32{a} * b); });
  binary<u32>("mul.lo.u32", [](u32 a, u32 b) { return a * b; });
  binary<u64>("mul.lo.s64", [](u64 a, u64 b) { return a * b; });
  ternary<u32>("mad.lo.s32", [](u32 a, u32 b, u32 c) { return a * b + c; });
  ternary<u64>("mad.lo.u64", [](u64 a, u64 b, u64 c) { return a * b + c; });
}

TEST(Integers, SaturateWhereAsked) {
  const auto clamp = [](s64 v) { return s32(std::clamp<s64>(v, INT32_MIN, INT32_MAX)); };
  binary<s32>("add.sat.s32", [&](s32 a, s32 b) { return clamp(s64{a} + b); });
  binary<s32>("sub.sat.s32", [&](s32 a, s32 b) { return clamp(s64{a} - b); });
}

TEST(Integers, HighAndWideProducts) {
  binary<u16>("mul.hi.u16", [](u16 a, u16 b) { return u16(u32{a} * b >> 16); });
  binary<s16>("mul.hi.s16", [](s16 a, s16 b) { return s16(s32{a} * b >> 16); });
  binary<u32>("mul.hi.u32", [](u32 a, u32 b) { return u32(u64{a} * b >> 32); });
  binary<s32>("mul.hi.s32", [](s32 a, s32 b) { return s32(s64{a} * b >> 32); });
  binary<u64>("mul.hi.u64", [](u64 a, u64 b) { return u64(u128{a} * b >> 64); });
  binary<s64>("mul.hi.s64", [](s64 a, s64 b) { return s64(s128{a} * b >> 64); });
  binary<u16>("mul.wide.u16", [](u16 a, u16 b) { return u32{a} * b; });
  binary<s16>("mul.wide.s16", [](s16 a, s16 b) { return s32{a} * b; });
  binary<u32>("mul.wide.u32", [](u32 a, u32 b) { return u64{a} * b; });
  binary<s32>("mul.wide.s32", [](s32 a, s32 b) { return s64{a} * b; });
  ternary<u32>("mad.hi.u32", [](u32 a, u32 b, u32 c) { return u32(u64{a} * b >> 32) + c; });
  check_instruction<s64>(
      "mad.wide.s32 $d, $a, $b, $c;", [](s32 a, s32 b, s64 c) { return s64(u64(s64{a} * b) + u64(c)); },
      edge_values<s32>(), edge_values<s32>(), edge_values<s64>());
  binary<u32>("mul24.lo.u32", [](u32 a, u32 b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); });
}

template <class T>
T quotient(T a, T b) {
  if (b == 0) return T(-1);
  if (std::is_signed_v<T> && b == T(-1)) return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(a));
  return T(a / b);
}
template <class T>
T rest(T a, T b) {
  if (b == 0) return a;
  return std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b);
}
template <class T>
void division(const std::string& type) {
  binary<T>("div." + type, quotient<T>);
  binary<T>("rem." + type, rest<T>);
  binary<T>("min." + type, [](T a, T b) { return std::min(a, b); });
  binary<T>("max." + type, [](T a, T b) { return std::max(a, b); });
}
TEST(Integers, DivideWithoutTrappingAndOrder) {
  division<u16>("u16");
  division<s16>("s16");
  division<u32>("u32");
  division<s32>("s32");
  division<u64>("u64");
  division<s64>("s64");
}

TEST(Integers, SignsAndDifferences) {
  unary<s32>("abs.s32", [](s32 a) { return s32(a < 0 ? 0u - u32(a) : u32(a)); });
  unary<s64>("abs.s64", [](s64 a) { return s64(a < 0 ? u64{0} - u64(a) : u64(a)); });
  unary<u16>("neg.s16", [](u16 a) { return u16(-a); });
  unary<u32>("neg.s32", [](u32 a) { return 0u - a; });
  unary<u64>("neg.s64", [](u64 a) { return u64{0} - a; });
  ternary<s32>("sad.s32", [](s32 a, s32 b, s32 c) {
    return s32(u32(a < b ? u32(b) - u32(a) : u32(a) - u32(b)) + u32(c));
  });
  ternary<u32>("sad.u32", [](u32 a, u32 b, u32 c) { return (a < b ? b - a : a - b) + c; });
}

TEST(Bits, Logic) {
  binary<u16>("and.b16", [](u16 a, u16 b) { return u16(a & b); });
  binary<u32>("or.b32", [](u32 a, u32 b) { return a | b; });
  binary<u64>("xor.b64", [](u64 a, u64 b) { return a ^ b; });
  unary<u32>("not.b32", [](u32 a) { return ~a; });
  unary<u16>("not.b16", [](u16 a) { return u16(~a); });
  unary<u32>("cnot.b32", [](u32 a) { return u32(a == 0); });
  for (const u32 table : {0x80u, 0xFEu, 0x96u, 0xCAu, 0xE8u, 0x1Bu})
    ternary<u32>("lop3.b32 $d, $a, $b, $c, " + std::to_string(table) + "; //", [table](u32 a, u32 b, u32 c) {
      u32 r = 0;
      for (unsigned bit = 0; bit < 32; ++bit)
        r |= (table >> ((a >> bit & 1) * 4 + (b >> bit & 1) * 2 + (c >> bit & 1)) & 1) << bit;
      return r;
    });
}

TEST(Bits, ShiftsClampTheirDistance) {
  shift<u16>("shl.b16", [](u16 a, u32 b) { return b < 16 ? u16(a << b) : u16{0}; });
  shift<u32>("shl.b32", [](u32 a, u32 b) { return b < 32 ? a << b : 0; });
  shift<u64>("shl.b64", [](u64 a, u32 b) { return b < 64 ? a << b : 0; });
  shift<u32>("shr.u32", [](u32 a, u32 b) { return b < 32 ? a >> b : 0; });
  shift<u64>("shr.b64", [](u64 a, u32 b) { return b < 64 ? a >> b : 0; });
  shift<s16>("shr.s16", [](s16 a, u32 b) { return s16(a >> std::min(b, 15u)); });
  shift<s32>("shr.s32", [](s32 a, u32 b) { return a >> std::min(b, 31u); });
  shift<s64>("shr.s64", [](s64 a, u32 b) { return a >> std::min(b, 63u); });
  ternary<u32>("shf.l.wrap.b32",
               [](u32 a, u32 b, u32 c) { return u32((u64{b} << 32 | a) << (c & 31) >> 32); });
  ternary<u32>("shf.r.wrap.b32", [](u32 a, u32 b, u32 c) { return u32((u64{b} << 32 | a) >> (c & 31)); });
  ternary<u32>("shf.l.clamp.b32",
               [](u32 a, u32 b, u32 c) { return c >= 32 ? a : u32((u64{b} << 32 | a) << c >> 32); });
  ternary<u32>("shf.r.clamp.b32",
               [](u32 a, u32 b, u32 c) { return c >= 32 ? b : u32((u64{b} << 32 | a) >> c); });
}

template <class T>
T extract(T a, u32 position, u32 length) {  // the loop of the PTX manual
  const u32 pos = position & 255, len = length & 255, msb = sizeof(T) * 8 - 1;
  using U = std::make_unsigned_t<T>;
  const U bits = U(a);
  const bool sign = std::is_signed_v<T> && len != 0 && (bits >> std::min(pos + len - 1, msb) & 1);
  U d = sign ? ~U{0} : U{0};
  for (u32 i = 0; i <= msb; ++i)
    if (i < len && pos + i <= msb) d = (d & ~(U{1} << i)) | (bits >> (pos + i) & 1) << i;
  return len == 0 ? T(0) : T(d);
}
TEST(Bits, Fields) {
  const auto small = std::vector<u32>{0, 1, 3, 8, 16, 31, 32, 33, 40, 63, 64, 100, 255, 256, 0xFFFFFFFF};
  check_instruction<u32>("bfe.u32 $d, $a, $b, $c;", extract<u32>, edge_values<u32>(), small, small);
  check_instruction<s32>("bfe.s32 $d, $a, $b, $c;", extract<s32>, edge_values<s32>(), small, small);
  check_instruction<u64>("bfe.u64 $d, $a, $b, $c;", extract<u64>, edge_values<u64>(), small, small);
  check_instruction<s64>("bfe.s64 $d, $a, $b, $c;", extract<s64>, edge_values<s64>(), small, small);
}
TEST(Bits, Inserts) {
  for (const u32 length : {0u, 1u, 8u, 31u, 32u, 40u})
    check_instruction<u32>(
        "bfi.b32 $d, $a, $b, $c, " + std::to_string(length) + ";",
        [length](u32 a, u32 b, u32 c) {
          const u32 pos = c & 255;
          for (u32 i = 0; i < length && pos + i < 32; ++i)
            b = (b & ~(1u << (pos + i))) | (a >> i & 1) << (pos + i);
          return b;
        },
        edge_values<u32>(), edge_values<u32>(), std::vector<u32>{0, 1, 8, 24, 31, 32, 200});
}

TEST(Bits, CountsAndPositions) {
  unary<u32>("clz.b32", [](u32 a) { return u32(std::countl_zero(a)); });
  unary<u64>("clz.b64", [](u64 a) { return u32(std::countl_zero(a)); });
  unary<u32>("popc.b32", [](u32 a) { return u32(std::popcount(a)); });
  unary<u64>("popc.b64", [](u64 a) { return u32(std::popcount(a)); });
  unary<u32>("brev.b32", [](u32 a) {
    u32 r = 0;
    for (int i = 0; i < 32; ++i) r |= (a >> i & 1) << (31 - i);
    return r;
  });
  unary<u64>("brev.b64", [](u64 a) {
    u64 r = 0;
    for (int i = 0; i < 64; ++i) r |= (a >> i & 1) << (63 - i);
    return r;
  });
  unary<u32>("bfind.u32", [](u32 a) { return a == 0 ? ~0u : u32(31 - std::countl_zero(a)); });
  unary<s32>("bfind.s32", [](s32 a) {
    const u32 v = u32(a < 0 ? ~a : a);
    return v == 0 ? ~0u : u32(31 - std::countl_zero(v));
  });
  unary<u32>("bfind.shiftamt.u32", [](u32 a) { return a == 0 ? ~0u : u32(std::countl_zero(a)); });
}

TEST(Bits, PermutesAndDotProducts) {
  ternary<u32>("prmt.b32", [](u32 a, u32 b, u32 c) {
    u32 r = 0;
    for (int i = 0; i < 4; ++i) {
      const u32 s = c >> i * 4 & 15, byte = u32((u64{b} << 32 | a) >> (s & 7) * 8) & 255;
      r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << i * 8;
    }
    return r;
  });
  ternary<u32>("dp4a.s32.s32", [](u32 a, u32 b, u32 c) {
    for (int i = 0; i < 32; i += 8) c += u32(s32{s8(a >> i)} * s32{s8(b >> i)});
    return c;
  });
  ternary<u32>("dp4a.u32.u32", [](u32 a, u32 b, u32 c) {
    for (int i = 0; i < 32; i += 8) c += u32{u8(a >> i)} * u32{u8(b >> i)};
    return c;
  });
}

TEST(Comparisons, OfIntegers) {
  compare<s32>("setp.lt.s32", [](s32 a, s32 b) { return a < b; });
  compare<u32>("setp.lo.u32", [](u32 a, u32 b) { return a < b; });
  compare<u64>("setp.hs.u64", [](u64 a, u64 b) { return a >= b; });
  compare<s64>("setp.gt.s64", [](s64 a, s64 b) { return a > b; });
  compare<s16>("setp.le.s16", [](s16 a, s16 b) { return a <= b; });
  compare<u32>("setp.eq.b32", [](u32 a, u32 b) { return a == b; });
  compare<u64>("setp.ne.s64", [](u64 a, u64 b) { return a != b; });
}

template <class T>
void float_comparisons(const std::string& type) {
  const auto unordered = [](T a, T b) { return std::isnan(a) || std::isnan(b); };
  compare<T>("setp.eq." + type, [](T a, T b) { return a == b; });
  compare<T>("setp.ne." + type, [=](T a, T b) { return !unordered(a, b) && a != b; });
  compare<T>("setp.lt." + type, [](T a, T b) { return a < b; });
  compare<T>("setp.le." + type, [](T a, T b) { return a <= b; });
  compare<T>("setp.gt." + type, [](T a, T b) { return a > b; });
  compare<T>("setp.ge." + type, [](T a, T b) { return a >= b; });
  compare<T>("setp.equ." + type, [=](T a, T b) { return unordered(a, b) || a == b; });
  compare<T>("setp.neu." + type, [](T a, T b) { return a != b; });
  compare<T>("setp.ltu." + type, [=](T a, T b) { return unordered(a, b) || a < b; });
  compare<T>("setp.leu." + type, [=](T a, T b) { return unordered(a, b) || a <= b; });
  compare<T>("setp.gtu." + type, [=](T a, T b) { return unordered(a, b) || a > b; });
  compare<T>("setp.geu." + type, [=](T a, T b) { return unordered(a, b) || a >= b; });
  compare<T>("setp.num." + type, [=](T a, T b) { return !unordered(a, b); });
  compare<T>("setp.nan." + type, unordered);
}
TEST(Comparisons, OfFloatsOrderedAndUnordered) {
  float_comparisons<float>("f32");
  float_comparisons<double>("f64");
}

TEST(Comparisons, CombineWithAPredicate) {
  check_instruction<u32>(
      "setp.ne.u32 %p2, $c, 0; setp.lt.and.s32 %p1|%p3, $a, $b, %p2; selp.u32 $d, 1, 0, %p1; @%p3 or.b32 $d, "
      "$d, 2;",
      [](s32 a, s32 b, u32 c) { return u32(a < b && c != 0) | u32(!(a < b) && c != 0) << 1; },
      edge_values<s32>(), edge_values<s32>(), std::vector<u32>{0, 1});
  check_instruction<u32>(
      "setp.ne.u32 %p1, $c, 0; setp.eq.xor.u32 %p1, $a, $b, !%p1; selp.u32 $d, 1, 0, %p1;",
      [](u32 a, u32 b, u32 c) { return u32((a == b) != (c == 0)); }, edge_values<u32>(), edge_values<u32>(),
      std::vector<u32>{0, 1});
  binary<s32>("set.gt.u32.s32", [](s32 a, s32 b) { return a > b ? ~0u : 0u; });
  check_instruction<float>(
      "set.le.f32.f32 $d, $a, $b;", [](float a, float b) { return a <= b ? 1.0f : 0.0f; },
      edge_values<float>(), edge_values<float>());
  check_instruction<s32>(
      "slct.s32.s32 $d, $a, $b, $c;", [](s32 a, s32 b, s32 c) { return c >= 0 ? a : b; }, edge_values<s32>(),
      edge_values<s32>(), edge_values<s32>());
}

template <class T>
T least(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
T most(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
template <class T>
void float_arithmetic(const std::string& type) {
  binary<T>("add.rn." + type, [](T a, T b) { return a + b; });
  binary<T>("sub." + type, [](T a, T b) { return a - b; });
  binary<T>("mul.rn." + type, [](T a, T b) { return a * b; });
  binary<T>("div.rn." + type, [](T a, T b) { return a / b; });
  ternary<T>("fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
  unary<T>("sqrt.rn." + type, [](T a) { return std::sqrt(a); });
  unary<T>("rcp.rn." + type, [](T a) { return T(1) / a; });
  unary<T>("abs." + type, [](T a) { return std::fabs(a); });
  unary<T>("neg." + type, [](T a) { return -a; });
  binary<T>("min." + type, least<T>);
  binary<T>("max." + type, most<T>);
  binary<T>("copysign." + type, [](T a, T b) { return std::copysign(b, a); });
}
TEST(Floats, ArithmeticIsIeeeRoundedToNearest) {
  float_arithmetic<float>("f32");
  float_arithmetic<double>("f64");
}

TEST(Floats, NaNOfFloat32IsTheCanonicalOne) {
  check_instruction<u32>(
      "add.f32 $d, $a, $b;", [](u32, u32) { return 0x7FFFFFFFu; }, std::vector<u32>{0x7FC00001, 0xFFC12345},
      std::vector<u32>{0x3F800000, 0xFF800000, 0x7F800001});
  check_instruction<u32>(
      "min.f32 $d, $a, $b;", [](u32, u32) { return 0x7FFFFFFFu; }, std::vector<u32>{0x7FC00001},
      std::vector<u32>{0xFFC12345});
}

TEST(Floats, FlushSubnormalsAndSaturateWhereAsked) {
  const auto ftz = [](float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; };
  binary<float>("add.ftz.f32", [=](float a, float b) { return ftz(ftz(a) + ftz(b)); });
  binary<float>("mul.rn.ftz.f32", [=](float a, float b) { return ftz(ftz(a) * ftz(b)); });
  compare<float>("setp.gt.ftz.f32", [=](float a, float b) { return ftz(a) > ftz(b); });
  const auto sat = [](float v) { return v >= 0 ? std::min(v, 1.0f) : 0.0f; };
  binary<float>("add.sat.f32", [=](float a, float b) { return sat(a + b); });
  ternary<float>("fma.rn.sat.f32", [=](float a, float b, float c) { return sat(std::fma(a, b, c)); });
}

// The addend lies far below the last place of the (exact) product, so every direction has its own right
// answer.
template <class T>
void check_directed_fma(const std::string& type) {
  const std::vector<T> a{2, -4, T(1.5)}, b{8, -3}, c{T(1e-30), T(-1e-30), 0};
  const auto row = [&](const char* round, auto moved, T limit) {
    check_instruction<T>(
        "fma." + std::string(round) + "." + type + " $d, $a, $b, $c;",
        [=](T x, T y, T z) { return moved(x * y, z) ? std::nextafter(x * y, limit) : x * y; }, a, b, c);
  };
  constexpr auto infinity = std::numeric_limits<T>::infinity();
  row(
      "rn", [](T, T) { return false; }, 0);
  row(
      "rm", [](T, T z) { return z < 0; }, -infinity);
  row(
      "rp", [](T, T z) { return z > 0; }, infinity);
  row(
      "rz", [](T product, T z) { return product * z < 0; }, 0);
}

TEST(Floats, DirectedRounding) {
  const auto up = [](float v) { return std::nextafterf(v, INFINITY); };
  check_instruction<float>(
      "add.rp.f32 $d, $a, $b;",
      [=](float a, float b) {
        const float r = a + b;
        return double{r} < double{a} + double{b} ? up(r) : r;
      },
      std::vector<float>{1, 0.1f, 3.3f}, std::vector<float>{1e-3f, 0.7f, 1234.5f});
  check_instruction<float>(
      "mul.rz.f32 $d, $a, $b;",
      [](float a, float b) {
        const float r = a * b;
        return std::fabs(double{r}) > std::fabs(double{a} * double{b}) ? std::nextafterf(r, 0) : r;
      },
      std::vector<float>{1.1f, -0.1f, 3.3f}, std::vector<float>{1.7f, 0.7f, 1234.5f});
  check_directed_fma<float>("f32");
  check_directed_fma<double>("f64");
}

void close(const std::string& op, auto f, double relative, const std::vector<float>& values) {
  SCOPED_TRACE(op);
  Device device;
  const std::string text =
      std::string(ptx_header) +
      ".entry k(.param .u64 x, .param .u64 y){ .reg .f32 %f<3>; .reg .u32 %t; .reg .u64 %q<5>; mov.u32 %t, "
      "%tid.x;"
      "ld.param.u64 %q0,[x]; ld.param.u64 %q1,[y]; mad.wide.u32 %q2,%t,4,%q0; mad.wide.u32 %q3,%t,4,%q1;"
      "ld.global.f32 %f0,[%q2]; " +
      op + " %f1, %f0; st.global.f32 [%q3],%f1; ret; }";
  const auto program = parsed(text);
  ASSERT_TRUE(program);
  const auto x = device.upload(values), y = device.allocate(values.size() * 4);
  expect_success(
      run(*program, "k", device, {1, 1, 1}, {static_cast<unsigned>(values.size()), 1, 1}, Args(x, y)));
  const auto results = device.download<float>(y, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double wanted = f(double{values[i]});
    if (std::isnan(wanted))
      EXPECT_TRUE(std::isnan(results[i])) << values[i];
    else if (std::isinf(float(wanted)))
      EXPECT_EQ(results[i], float(wanted)) << values[i];
    else
      EXPECT_NEAR(results[i], wanted, relative * std::max(std::fabs(wanted), 1e-30)) << values[i];
  }
}
TEST(Floats, ApproximationsAreGoodToAFewLastBits) {
  const std::vector<float> any = {0.0f,     -0.0f,    1e-30f,    0.1f, 0.5f,       1,    1.5f,   2,
                                  3.14159f, -1,       -0.7f,     10,   100,        -100, 126.5f, -140,
                                  200,      INFINITY, -INFINITY, NAN,  12345.678f, 1e-5f};
  close(
      "ex2.approx.f32", [](double v) { return std::exp2(v); }, 3e-7, any);
  close(
      "lg2.approx.f32", [](double v) { return std::log2(v); }, 3e-7, any);
  close(
      "sin.approx.f32", [](double v) { return std::sin(v); }, 1e-6, any);
  close(
      "cos.approx.f32", [](double v) { return std::cos(v); }, 1e-6, any);
  close(
      "tanh.approx.f32", [](double v) { return std::tanh(v); }, 3e-7, any);
  close(
      "rsqrt.approx.f32", [](double v) { return 1 / std::sqrt(v); }, 1e-7, any);
  close(
      "rcp.approx.f32", [](double v) { return 1 / v; }, 1e-7, any);
}

// Conversions
// ---------------------------------------------------------------------------------------------------

template <class D, class S>
void convert(const std::string& op, auto f) {
  check_instruction<D>(
      op + " $d, $a;", [f](S a) { return D(f(a)); }, edge_values<S>());
}
template <class D, class F>
D saturated(F v) {
  using L = std::numeric_limits<D>;
  if (std::isnan(v))
    return sizeof(D) == 8 || sizeof(F) == 8 ? D(std::make_unsigned_t<D>(1) << (sizeof(D) * 8 - 1)) : D(0);
  if (v >= std::ldexp(F(1), L::digits)) return L::max();
  if (v < F(L::lowest())) return L::lowest();
  return D(v);
}
TEST(Conversions, BetweenIntegersExtendAndCutOff) {
  convert<u32, u16>("cvt.u32.u16", [](u16 a) { return a; });
  convert<s32, s16>("cvt.s32.s16", [](s16 a) { return a; });
  convert<s64, s32>("cvt.s64.s32", [](s32 a) { return a; });
  convert<u64, u32>("cvt.u64.u32", [](u32 a) { return a; });
  convert<u16, u32>("cvt.u16.u32", [](u32 a) { return u16(a); });
  convert<u32, u64>("cvt.u32.u64", [](u64 a) { return u32(a); });
  convert<s32, s32>("cvt.s32.s8", [](s32 a) { return s8(a); });
  convert<u32, u32>("cvt.u32.u8", [](u32 a) { return u8(a); });
  convert<s64, s64>("cvt.s64.s16", [](s64 a) { return s16(a); });
  convert<s16, s32>("cvt.sat.s16.s32", [](s32 a) { return std::clamp(a, -32768, 32767); });
  convert<u32, s32>("cvt.sat.u8.s32", [](s32 a) { return u32(std::clamp(a, 0, 255)); });
  convert<u32, s64>("cvt.sat.u32.s64", [](s64 a) { return u32(std::clamp<s64>(a, 0, UINT32_MAX)); });
}
TEST(Conversions, FromFloatsRoundAndSaturate) {
  convert<s32, float>("cvt.rzi.s32.f32", [](float a) { return saturated<s32>(std::trunc(a)); });
  convert<s32, float>("cvt.rni.s32.f32", [](float a) { return saturated<s32>(std::nearbyint(a)); });
  convert<s32, float>("cvt.rmi.s32.f32", [](float a) { return saturated<s32>(std::floor(a)); });
  convert<s32, float>("cvt.rpi.s32.f32", [](float a) { return saturated<s32>(std::ceil(a)); });
  convert<u32, float>("cvt.rzi.u32.f32", [](float a) { return saturated<u32>(std::trunc(a)); });
  convert<u64, float>("cvt.rzi.u64.f32", [](float a) { return saturated<u64>(std::trunc(a)); });
  convert<s64, double>("cvt.rzi.s64.f64", [](double a) { return saturated<s64>(std::trunc(a)); });
  convert<u16, float>("cvt.rzi.u16.f32", [](float a) { return saturated<u16>(std::trunc(a)); });
  convert<s32, double>("cvt.rni.s32.f64", [](double a) { return saturated<s32>(std::nearbyint(a)); });
}
TEST(Conversions, ToFloatsRoundToNearest) {
  convert<float, s32>("cvt.rn.f32.s32", [](s32 a) { return float(a); });
  convert<float, u32>("cvt.rn.f32.u32", [](u32 a) { return float(a); });
  convert<float, u64>("cvt.rn.f32.u64", [](u64 a) { return float(a); });
  convert<float, s64>("cvt.rn.f32.s64", [](s64 a) { return float(a); });
  convert<double, s64>("cvt.rn.f64.s64", [](s64 a) { return double(a); });
  convert<double, u32>("cvt.rn.f64.u32", [](u32 a) { return double(a); });
  convert<double, float>("cvt.f64.f32", [](float a) { return double(a); });
  convert<float, double>("cvt.rn.f32.f64", [](double a) { return float(a); });
  convert<float, double>("cvt.rz.f32.f64", [](double a) {
    const float r = float(a);
    return std::fabs(double{r}) > std::fabs(a) ? std::nextafterf(r, 0) : r;
  });
  convert<float, float>("cvt.rni.f32.f32", [](float a) { return std::nearbyint(a); });
  convert<float, float>("cvt.sat.f32.f32", [](float a) { return a >= 0 ? std::min(a, 1.0f) : 0.0f; });
}

// A slow and plain rounding to a small float, by searching the nearest among all of them.
u16 nearest_half(double v, double (*value)(u16)) {
  if (std::isnan(v)) return 0x7FFF;
  u16 best = 0;
  double distance = INFINITY;
  for (u32 candidate = 0; candidate < 0x8000; ++candidate) {
    const double x = value(u16(candidate));
    if (std::isnan(x)) break;
    const double finite = std::isinf(x) ? 2 * value(u16(candidate - 1)) - value(u16(candidate - 2)) : x;
    const double away = std::fabs(std::fabs(v) - finite);
    if (away < distance || (away == distance && (candidate & 1) == 0)) best = u16(candidate), distance = away;
    if (std::isinf(x)) {
      if (std::fabs(v) >= finite) best = u16(candidate);
      break;
    }
  }
  return u16(best | (std::signbit(v) ? 0x8000 : 0));
}
double half_value(u16 h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}
double bhalf_value(u16 h) { return std::bit_cast<float>(u32{h} << 16); }

TEST(Halves, ConvertBothWaysWithOneRounding) {
  std::vector<u16> all(65536);
  std::iota(all.begin(), all.end(), u16{0});
  check_instruction<float>(
      "cvt.f32.f16 $d, $a;", [](u16 a) { return float(half_value(a)); }, all);
  std::vector<float> values = {
      0,          -0.0f,         1,        65504,    65519.996f, 65520,     1e6f,
      -1e6f,      5.9604645e-8f, 2.98e-8f, 2.99e-8f, 6.1e-5f,    6.097e-5f, 1.0004883f,
      1.0014648f, 0.33333334f,   1e-10f,   INFINITY, -INFINITY,  NAN,       3.4e38f};
  check_instruction<u16>(
      "cvt.rn.f16.f32 $d, $a;", [](float a) { return nearest_half(a, half_value); }, values);
  check_instruction<u16>(
      "cvt.rn.bf16.f32 $d, $a;", [](float a) { return nearest_half(a, bhalf_value); }, values);
  check_instruction<u16>(
      "cvt.rn.f16.s32 $d, $a;", [](s32 a) { return nearest_half(a, half_value); }, edge_values<s32>());
  check_instruction<u16>(
      "cvt.rz.f16.f32 $d, $a;",
      [](float a) { return a == 1.0004883f ? u16{0x3C00} : nearest_half(a, half_value); },
      std::vector<float>{1, 1.0004883f, 0.5f});
}
TEST(Halves, ArithmeticRoundsOnce) {
  const std::vector<u16> values = {0,      0x8000, 0x3C00, 0xBC00, 0x3555, 0x7BFF, 0xFBFF, 0x0001,
                                   0x8001, 0x0400, 0x7C00, 0xFC00, 0x7E00, 0x4248, 0x1234, 0x6789};
  const auto h = half_value;
  check_instruction<u16>(
      "add.f16 $d, $a, $b;", [=](u16 a, u16 b) { return nearest_half(h(a) + h(b), half_value); }, values,
      values);
  check_instruction<u16>(
      "mul.rn.f16 $d, $a, $b;", [=](u16 a, u16 b) { return nearest_half(h(a) * h(b), half_value); }, values,
      values);
  check_instruction<u16>(
      "fma.rn.f16 $d, $a, $b, $c;",
      [=](u16 a, u16 b, u16 c) {
        const long double exact = static_cast<long double>(h(a)) * h(b) + h(c);
        const u16 r = nearest_half(double(exact), half_value);
        return exact == 0 && std::signbit(h(a) * h(b)) != std::signbit(h(c)) ? u16(r & 0x7FFF) : r;
      },
      values, values, values);
  check_instruction<u16>(
      "neg.f16 $d, $a;", [](u16 a) { return u16(a ^ 0x8000); }, values);
  check_instruction<u32>(
      "add.f16x2 $d, $a, $b;",
      [=](u32 a, u32 b) {
        return u32{nearest_half(h(u16(a)) + h(u16(b)), half_value)} |
               u32{nearest_half(h(u16(a >> 16)) + h(u16(b >> 16)), half_value)} << 16;
      },
      std::vector<u32>{0x3C003C00, 0x12345678, 0x7BFF0001}, std::vector<u32>{0xBC000400, 0x7BFF3555});
  check_instruction<u16>(
      "mul.bf16 $d, $a, $b;",
      [](u16 a, u16 b) { return nearest_half(double(float(bhalf_value(a) * bhalf_value(b))), bhalf_value); },
      std::vector<u16>{0x3F80, 0xBF81, 0x4049}, std::vector<u16>{0x3F81, 0x4000, 0x3EAB});
}

TEST(Moves, PackAndUnpack) {
  check_instruction<u64>(
      "mov.b64 $d, {$a, $b};", [](u32 a, u32 b) { return u64{a} | u64{b} << 32; }, edge_values<u32>(),
      edge_values<u32>());
  check_instruction<u32>(
      "mov.b32 $d, {$a, $b};", [](u16 a, u16 b) { return u32{a} | u32{b} << 16; }, edge_values<u16>(),
      edge_values<u16>());
  check_instruction<u32>(
      "mov.b64 {_, $d}, $a;", [](u64 a) { return u32(a >> 32); }, edge_values<u64>());
  check_instruction<u16>(
      "mov.b32 {$d, %h7}, $a;", [](u32 a) { return u16(a); }, edge_values<u32>());
}
TEST(Carries, ChainThroughAddAndSubtract) {
  check_instruction<u64>(
      "mov.b64 {%r1,%r2},$a; mov.b64 {%r3,%r4},$b; add.cc.u32 %r5,%r1,%r3; addc.u32 %r6,%r2,%r4; mov.b64 "
      "$d,{%r5,%r6};",
      [](u64 a, u64 b) { return a + b; }, edge_values<u64>(), edge_values<u64>());
  check_instruction<u64>(
      "mov.b64 {%r1,%r2},$a; mov.b64 {%r3,%r4},$b; sub.cc.u32 %r5,%r1,%r3; subc.u32 %r6,%r2,%r4; mov.b64 "
      "$d,{%r5,%r6};",
      [](u64 a, u64 b) { return a - b; }, edge_values<u64>(), edge_values<u64>());
}

}  // namespace
}  // namespace cenote::cuda::testing
