#include "collectives/reduce/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace cenote::collectives {
namespace {

constexpr DataType all_types[] = {CENOTE_FLOAT32,  CENOTE_FLOAT64, CENOTE_FLOAT16,
                                  CENOTE_BFLOAT16, CENOTE_INT32,   CENOTE_INT64};
constexpr ReduceOp all_ops[] = {CENOTE_SUM, CENOTE_MIN, CENOTE_MAX, CENOTE_AVG};

template <class T>
T combine(DataType type, ReduceOp op, T a, T b, Width width = Width::baseline) {
  T out{};
  reduce_kernel(type, op, width)(&out, &a, &b, 1);
  return out;
}

// The reference for 16-bit floats, computed in double with no trick in common with the kernels: every half is
// a double exactly, the sum of two is one too, and so is each candidate result; the nearest wins, ties to
// even.

struct Half {
  DataType type;
  int mantissa_bits, bias;

  double value(std::uint16_t x) const {
    const int exponent_bits = 15 - mantissa_bits;
    const int exponent = x >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = x & ((1 << mantissa_bits) - 1);
    const double sign = (x & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1 << (15 - mantissa_bits)) - 1) << mantissa_bits);
  }
  std::uint16_t round(double x) const {
    if (std::isnan(x)) return 0x7fff;
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double m = std::abs(x);
    // Magnitudes are ordered like their bits: the last one that is not above m, by bisection.
    std::uint16_t low = 0;
    std::uint16_t high = infinity();
    while (high - low > 1) {
      const auto middle = static_cast<std::uint16_t>((low + high) / 2);
      (value(middle) <= m ? low : high) = middle;
    }
    if (m == std::numeric_limits<double>::infinity()) return sign | infinity();
    // Above the largest number the next one would have been, were infinity a number.
    const double next = high == infinity()
                            ? 2 * value(static_cast<std::uint16_t>(infinity() - (1 << mantissa_bits)))
                            : value(high);
    const double middle = (value(low) + next) / 2;
    const bool up = m > middle || (m == middle && (low & 1) != 0);
    return sign | (up ? high : low);
  }
};
constexpr Half float16{CENOTE_FLOAT16, 10, 15};
constexpr Half bfloat16{CENOTE_BFLOAT16, 7, 127};

const std::vector<std::uint16_t> half_edges{
    0x0000, 0x8000, 0x0001, 0x8001, 0x0002, 0x03ff, 0x0400, 0x8400, 0x3c00, 0xbc00, 0x3c01, 0x7bff,
    0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe00, 0x7fff, 0xffff, 0x0080, 0x007f, 0x3f80, 0xbf80,
    0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0x3555, 0x5bb8, 0xd3c1, 0x1234};

std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

class Halves : public ::testing::TestWithParam<Half> {};

TEST_P(Halves, SumsAreRoundedOnceToNearestEven) {
  const auto half = GetParam();
  const auto all = every_half();
  std::vector<std::uint16_t> out(all.size());
  for (auto edge : half_edges) {
    const std::vector<std::uint16_t> partner(all.size(), edge);
    reduce_kernel(half.type, CENOTE_SUM)(out.data(), all.data(), partner.data(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      // bfloat16 sums need not fit a float: it rounds first, then the narrowing does, as a GPU's code does.
      const auto in_float = static_cast<float>(half.value(all[i]) + half.value(edge));
      ASSERT_EQ(out[i], half.round(in_float)) << std::hex << all[i] << " + " << edge;
    }
  }
}

TEST_P(Halves, AveragesDivideInFloat) {
  const auto half = GetParam();
  for (std::uint32_t ranks : {1U, 2U, 3U, 7U, 1000U}) {
    auto values = every_half();
    divide_kernel(half.type)(values.data(), values.size(), ranks);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto expected = half.round(static_cast<float>(half.value(static_cast<std::uint16_t>(i))) /
                                       static_cast<float>(ranks));
      ASSERT_EQ(values[i], expected) << std::hex << i << " / " << ranks;
    }
  }
}

TEST_P(Halves, MinimumAndMaximumPropagateNanAndOrderZeros) {
  const auto half = GetParam();
  const auto all = every_half();
  for (auto op : {CENOTE_MIN, CENOTE_MAX}) {
    std::vector<std::uint16_t> out(all.size());
    for (auto edge : half_edges) {
      const std::vector<std::uint16_t> partner(all.size(), edge);
      reduce_kernel(half.type, op)(out.data(), all.data(), partner.data(), all.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto a = half.value(all[i]);
        const auto b = half.value(edge);
        std::uint16_t expected = 0x7fff;
        if (!std::isnan(a) && !std::isnan(b)) {
          const bool a_less = a < b || (a == b && std::signbit(a) && !std::signbit(b));
          expected = a_less == (op == CENOTE_MIN) ? all[i] : edge;
        }
        ASSERT_EQ(out[i], expected) << std::hex << all[i] << " with " << edge;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Halves, ::testing::Values(float16, bfloat16),
                         [](const auto& tested) { return std::string(to_string(tested.param.type)); });

TEST(Reduce, NanOfFloatsIsOneNanWhateverWentIn) {
  const auto odd_nan = std::bit_cast<float>(0xffc12345U);
  for (auto op : {CENOTE_SUM, CENOTE_MIN, CENOTE_MAX}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(combine(CENOTE_FLOAT32, op, odd_nan, 1.0F)), 0x7fffffffU);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(combine(CENOTE_FLOAT32, op, 1.0F, odd_nan)), 0x7fffffffU);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(combine(CENOTE_FLOAT64, op, std::nan("7"), 1.0)),
              0x7fffffffffffffffULL);
  }
  const auto infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(std::bit_cast<std::uint32_t>(combine(CENOTE_FLOAT32, CENOTE_SUM, infinity, -infinity)),
            0x7fffffffU);
}

TEST(Reduce, MinusZeroIsBelowZero) {
  EXPECT_TRUE(std::signbit(combine(CENOTE_FLOAT32, CENOTE_MIN, 0.0F, -0.0F)));
  EXPECT_TRUE(std::signbit(combine(CENOTE_FLOAT32, CENOTE_MIN, -0.0F, 0.0F)));
  EXPECT_FALSE(std::signbit(combine(CENOTE_FLOAT64, CENOTE_MAX, -0.0, 0.0)));
  EXPECT_FALSE(std::signbit(combine(CENOTE_FLOAT64, CENOTE_MAX, 0.0, -0.0)));
}

TEST(Reduce, IntegersWrapAroundAndAveragesRoundTowardZero) {
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(combine(CENOTE_INT32, CENOTE_SUM, most, 1), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(combine(CENOTE_INT64, CENOTE_SUM, std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}),
            std::numeric_limits<std::int64_t>::max());
  std::int32_t values[] = {7, -7, 8, -1};
  divide_kernel(CENOTE_INT32)(values, 4, 4);
  EXPECT_EQ(std::vector(values, values + 4), (std::vector<std::int32_t>{1, -1, 2, 0}));
  std::int64_t large[] = {std::numeric_limits<std::int64_t>::min()};
  divide_kernel(CENOTE_INT64)(large, 1, 4'000'000'000U);
  EXPECT_EQ(large[0], std::numeric_limits<std::int64_t>::min() / 4'000'000'000LL);
}

/// Random bits: every kind of number, among them many NaNs and subnormals.
std::vector<std::byte> noise(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  for (auto& byte : out) byte = static_cast<std::byte>(random());
  // Every third 16-bit word an edge of a float's encoding, at whatever place.
  for (std::size_t i = 0; i + 2 <= bytes; i += 6)
    std::memcpy(out.data() + i, &half_edges[random() % half_edges.size()], 2);
  return out;
}

class Widths : public ::testing::TestWithParam<Width> {};

TEST_P(Widths, GiveTheBitsOfTheBaseline) {
  if (!supported(GetParam())) GTEST_SKIP() << "this processor has no " << to_string(GetParam());
  for (auto type : all_types) {
    for (std::size_t count : {0U, 1U, 2U, 7U, 8U, 9U, 15U, 31U, 33U, 64U, 1001U, 4099U}) {
      // One byte in front: the kernels promise to work at any alignment.
      const auto a = noise(count * size_of(type) + 1, count);
      const auto b = noise(count * size_of(type) + 1, count + 77);
      for (auto op : all_ops) {
        std::vector<std::byte> expected(a.size());
        auto in_place = a;
        std::vector<std::byte> apart(a.size());
        reduce_kernel(type, op, Width::baseline)(expected.data() + 1, a.data() + 1, b.data() + 1, count);
        reduce_kernel(type, op, GetParam())(in_place.data() + 1, in_place.data() + 1, b.data() + 1, count);
        reduce_kernel(type, op, GetParam())(apart.data() + 1, b.data() + 1, a.data() + 1, count);
        in_place[0] = expected[0];
        ASSERT_EQ(in_place, expected) << to_string(type) << " " << to_string(op) << " of " << count;
        ASSERT_EQ(apart, expected) << to_string(type) << " " << to_string(op) << " is not commutative";
      }
      for (std::uint32_t divisor : {1U, 3U, 8U, 4'000'000'000U}) {
        auto expected = a;
        auto found = a;
        divide_kernel(type, Width::baseline)(expected.data() + 1, count, divisor);
        divide_kernel(type, GetParam())(found.data() + 1, count, divisor);
        ASSERT_EQ(found, expected) << to_string(type) << " divided by " << divisor;
      }
    }
  }
}

TEST_P(Widths, GiveTheBitsOfTheBaselineForEveryHalf) {
  if (!supported(GetParam())) GTEST_SKIP() << "this processor has no " << to_string(GetParam());
  const auto all = every_half();
  std::vector<std::uint16_t> expected(all.size());
  std::vector<std::uint16_t> found(all.size());
  for (auto type : {CENOTE_FLOAT16, CENOTE_BFLOAT16}) {
    for (auto op : {CENOTE_SUM, CENOTE_MIN, CENOTE_MAX}) {
      for (auto edge : half_edges) {
        const std::vector<std::uint16_t> partner(all.size(), edge);
        reduce_kernel(type, op, Width::baseline)(expected.data(), all.data(), partner.data(), all.size());
        reduce_kernel(type, op, GetParam())(found.data(), all.data(), partner.data(), all.size());
        ASSERT_EQ(found, expected) << to_string(type) << " " << to_string(op) << " with " << edge;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Widths, ::testing::Values(Width::baseline, Width::avx2, Width::avx512),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(Reduce, RefusesWhatIsNotDefined) {
  std::uint32_t x = 0;
  EXPECT_EQ(reduce(&x, &x, 3, CENOTE_FLOAT32, CENOTE_SUM).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(reduce(&x, &x, 4, static_cast<DataType>(17), CENOTE_SUM).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(reduce(&x, &x, 4, CENOTE_FLOAT32, static_cast<ReduceOp>(17)).error().code,
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cenote::collectives
