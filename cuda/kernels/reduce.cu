// dst[i] = op(dst[i], src[i]), and x[i] = x[i] / divisor: bit for bit what collectives/reduce does on the
// CPU. Sums of float16 and bfloat16 are made in float32 and rounded once; min and max let a NaN win and put
// -0 below +0; every NaN is the canonical one. One thread an element, a grid of one dimension.
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace {

struct Float32 {
  using Stored = float;
  using Bits = int;
  static constexpr int magnitude = 0x7FFFFFFF, infinity = 0x7F800000;
  __device__ static float sum(float a, float b) { return canonical(a + b); }
  __device__ static float divide(float a, unsigned by) { return canonical(a / static_cast<float>(by)); }
  __device__ static float canonical(float r) { return r == r ? r : __int_as_float(magnitude); }
};

struct Float64 {
  using Stored = double;
  using Bits = long long;
  static constexpr long long magnitude = 0x7FFFFFFFFFFFFFFFLL, infinity = 0x7FF0000000000000LL;
  __device__ static double sum(double a, double b) { return canonical(a + b); }
  __device__ static double divide(double a, unsigned by) { return canonical(a / static_cast<double>(by)); }
  __device__ static double canonical(double r) { return r == r ? r : __longlong_as_double(magnitude); }
};

struct Float16 {
  using Stored = unsigned short;
  using Bits = short;
  static constexpr short magnitude = 0x7FFF, infinity = 0x7C00;
  __device__ static float widen(Stored h) { return __half2float(__ushort_as_half(h)); }
  __device__ static Stored narrow(float v) {
    return v == v ? __half_as_ushort(__float2half_rn(v)) : magnitude;
  }
  __device__ static Stored sum(Stored a, Stored b) { return narrow(widen(a) + widen(b)); }
  __device__ static Stored divide(Stored a, unsigned by) { return narrow(widen(a) / static_cast<float>(by)); }
};

struct BFloat16 {
  using Stored = unsigned short;
  using Bits = short;
  static constexpr short magnitude = 0x7FFF, infinity = 0x7F80;
  __device__ static float widen(Stored h) { return __uint_as_float(static_cast<unsigned>(h) << 16); }
  __device__ static Stored narrow(float v) {
    const unsigned bits = __float_as_uint(v);
    return v == v ? static_cast<Stored>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16) : magnitude;
  }
  __device__ static Stored sum(Stored a, Stored b) { return narrow(widen(a) + widen(b)); }
  __device__ static Stored divide(Stored a, unsigned by) { return narrow(widen(a) / static_cast<float>(by)); }
};

template <class T, class Unsigned>
struct Integer {
  using Stored = T;
  __device__ static T sum(T a, T b) {
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  }
  __device__ static T divide(T a, unsigned by) {
    return static_cast<T>(static_cast<long long>(a) / static_cast<long long>(by));
  }
  __device__ static T least(T a, T b) { return a < b ? a : b; }
  __device__ static T most(T a, T b) { return a > b ? a : b; }
};
using Int32 = Integer<int, unsigned>;
using Int64 = Integer<long long, unsigned long long>;

template <class To, class From>
__device__ To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Floats as sign and magnitude are ordered like integers, -0 below +0.
template <class T>
__device__ typename T::Bits ordered(typename T::Bits x) {
  return x < 0 ? static_cast<typename T::Bits>(x ^ T::magnitude) : x;
}
template <class T>
__device__ bool is_nan(typename T::Bits x) {
  return static_cast<typename T::Bits>(x & T::magnitude) > T::infinity;
}

template <class T>
__device__ typename T::Stored pick(typename T::Stored fa, typename T::Stored fb, bool least) {
  using Bits = typename T::Bits;
  const Bits a = bit_cast<Bits>(fa), b = bit_cast<Bits>(fb);
  const Bits picked = (ordered<T>(a) < ordered<T>(b)) == least ? a : b;
  return bit_cast<typename T::Stored>(is_nan<T>(a) || is_nan<T>(b) ? static_cast<Bits>(T::magnitude)
                                                                   : picked);
}

template <class T>
struct Sum {
  __device__ static typename T::Stored apply(typename T::Stored a, typename T::Stored b) {
    return T::sum(a, b);
  }
};
template <class T>
struct Min {
  __device__ static typename T::Stored apply(typename T::Stored a, typename T::Stored b) {
    return pick<T>(a, b, true);
  }
};
template <class T>
struct Max {
  __device__ static typename T::Stored apply(typename T::Stored a, typename T::Stored b) {
    return pick<T>(a, b, false);
  }
};
template <class T, class U>
struct Min<Integer<T, U>> {
  __device__ static T apply(T a, T b) { return Integer<T, U>::least(a, b); }
};
template <class T, class U>
struct Max<Integer<T, U>> {
  __device__ static T apply(T a, T b) { return Integer<T, U>::most(a, b); }
};

__device__ std::uint64_t element() {
  return static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <class T, class Op>
__device__ void reduce(void* dst, const void* src, std::uint64_t count) {
  using Stored = typename T::Stored;
  const auto i = element();
  if (i < count)
    static_cast<Stored*>(dst)[i] =
        Op::apply(static_cast<Stored*>(dst)[i], static_cast<const Stored*>(src)[i]);
}
template <class T>
__device__ void divide(void* x, std::uint64_t count, unsigned divisor) {
  using Stored = typename T::Stored;
  const auto i = element();
  if (i < count) static_cast<Stored*>(x)[i] = T::divide(static_cast<Stored*>(x)[i], divisor);
}

}  // namespace

#define CENOTE_REDUCE(name, Type)                                                                        \
  extern "C" __global__ void cenote_reduce_sum_##name(void* dst, const void* src, std::uint64_t count) { \
    reduce<Type, Sum<Type>>(dst, src, count);                                                            \
  }                                                                                                      \
  extern "C" __global__ void cenote_reduce_min_##name(void* dst, const void* src, std::uint64_t count) { \
    reduce<Type, Min<Type>>(dst, src, count);                                                            \
  }                                                                                                      \
  extern "C" __global__ void cenote_reduce_max_##name(void* dst, const void* src, std::uint64_t count) { \
    reduce<Type, Max<Type>>(dst, src, count);                                                            \
  }                                                                                                      \
  extern "C" __global__ void cenote_divide_##name(void* x, std::uint64_t count, unsigned divisor) {      \
    divide<Type>(x, count, divisor);                                                                     \
  }

CENOTE_REDUCE(f32, Float32)
CENOTE_REDUCE(f64, Float64)
CENOTE_REDUCE(f16, Float16)
CENOTE_REDUCE(bf16, BFloat16)
CENOTE_REDUCE(s32, Int32)
CENOTE_REDUCE(s64, Int64)
