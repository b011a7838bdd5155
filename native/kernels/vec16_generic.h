// Vec16 in the compiler's vector types of four lanes, which SSE2 and NEON have. Included by
// vec16.h only, which has the contract; vec16_avx512.h explains each operation.
#pragma once
#include <cstdint>
#include <cstring>

namespace takt::TAKT_ISA {

typedef float F32x4 __attribute__((vector_size(16)));
typedef int32_t I32x4 __attribute__((vector_size(16)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));
typedef double F64x4 __attribute__((vector_size(32)));
typedef int64_t I64x4 __attribute__((vector_size(32)));

struct Vec16 {
  F32x4 v[4];
};

TAKT_VEC_INLINE Vec16 set1(float x) {
  const F32x4 v = {x, x, x, x};
  return {{v, v, v, v}};
}
TAKT_VEC_INLINE Vec16 load(const float* p) {
  Vec16 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
TAKT_VEC_INLINE void store(float* p, Vec16 x) { std::memcpy(p, &x, sizeof(x)); }
TAKT_VEC_INLINE Vec16 load_first(const float* p, int count) {
  Vec16 x = set1(0.0f);
  std::memcpy(&x, p, size_t(count) * sizeof(float));
  return x;
}
TAKT_VEC_INLINE void store_first(float* p, Vec16 x, int count) {
  std::memcpy(p, &x, size_t(count) * sizeof(float));
}

TAKT_VEC_INLINE Vec16 operator+(Vec16 a, Vec16 b) {
  return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}};
}
TAKT_VEC_INLINE Vec16 operator-(Vec16 a, Vec16 b) {
  return {{a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}};
}
TAKT_VEC_INLINE Vec16 operator*(Vec16 a, Vec16 b) {
  return {{a.v[0] * b.v[0], a.v[1] * b.v[1], a.v[2] * b.v[2], a.v[3] * b.v[3]}};
}
TAKT_VEC_INLINE Vec16 operator/(Vec16 a, Vec16 b) {
  return {{a.v[0] / b.v[0], a.v[1] / b.v[1], a.v[2] / b.v[2], a.v[3] / b.v[3]}};
}

#if defined(__FP_FAST_FMAF)
TAKT_VEC_INLINE F32x4 fma4(F32x4 a, F32x4 b, F32x4 c) {
  F32x4 out;
  for (int i = 0; i < 4; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return out;
}
#else
// The product of two floats is exact in double. Their sum with c is rounded to odd (the last bit is
// set if anything was cut off), after which rounding to float gives what one rounding would: double
// has more than the two spare bits that this takes. The cut-off part is Knuth's two-sum.
TAKT_VEC_INLINE F32x4 fma4(F32x4 a, F32x4 b, F32x4 c) {
  const F64x4 addend = __builtin_convertvector(c, F64x4);
  const F64x4 product = __builtin_convertvector(a, F64x4) * __builtin_convertvector(b, F64x4);
  const F64x4 sum = product + addend;
  const F64x4 rest = sum - product;
  const F64x4 error = (product - (sum - rest)) + (addend - rest);
  const F64x4 zero = {0.0, 0.0, 0.0, 0.0};
  const I64x4 bits = reinterpret_cast<I64x4>(sum);
  const I64x4 is_even = (bits & 1) - 1;
  const I64x4 inexact = (error > zero) | (error < zero);  // false where infinity made it NaN
  const I64x4 away = ~((error > zero) ^ (sum > zero));    // from zero: +1 to the bits, else -1
  const I64x4 step = (away & 2) - 1;
  const F64x4 odd = reinterpret_cast<F64x4>(bits + (step & is_even & inexact));
  return __builtin_convertvector(odd, F32x4);
}
#endif
TAKT_VEC_INLINE Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return {{fma4(a.v[0], b.v[0], c.v[0]), fma4(a.v[1], b.v[1], c.v[1]),
           fma4(a.v[2], b.v[2], c.v[2]), fma4(a.v[3], b.v[3], c.v[3])}};
}

TAKT_VEC_INLINE F32x4 select4(I32x4 mask, F32x4 a, F32x4 b) {
  return reinterpret_cast<F32x4>((mask & reinterpret_cast<I32x4>(a)) |
                                 (~mask & reinterpret_cast<I32x4>(b)));
}
TAKT_VEC_INLINE F32x4 max4(F32x4 a, F32x4 b) { return select4(a > b, a, b); }
TAKT_VEC_INLINE F32x4 min4(F32x4 a, F32x4 b) { return select4(a < b, a, b); }
TAKT_VEC_INLINE Vec16 max(Vec16 a, Vec16 b) {
  return {{max4(a.v[0], b.v[0]), max4(a.v[1], b.v[1]), max4(a.v[2], b.v[2]),
           max4(a.v[3], b.v[3])}};
}
TAKT_VEC_INLINE Vec16 min(Vec16 a, Vec16 b) {
  return {{min4(a.v[0], b.v[0]), min4(a.v[1], b.v[1]), min4(a.v[2], b.v[2]),
           min4(a.v[3], b.v[3])}};
}

TAKT_VEC_INLINE Vec16 lanes_between(Vec16 x, int begin, int end, Vec16 other) {
  Vec16 out;
  for (int i = 0; i < 4; ++i) {
    const I32x4 lane = I32x4{0, 1, 2, 3} + 4 * i;
    out.v[i] = select4((lane >= begin) & (lane < end), x.v[i], other.v[i]);
  }
  return out;
}

TAKT_VEC_INLINE uint32_t lane_bits(I32x4 mask) {
  const I32x4 bit = mask & I32x4{1, 2, 4, 8};
  return uint32_t(bit[0] | bit[1] | bit[2] | bit[3]);
}
TAKT_VEC_INLINE uint32_t greater_mask(Vec16 a, Vec16 b) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= lane_bits(a.v[i] > b.v[i]) << (4 * i);
  return out;
}
TAKT_VEC_INLINE uint32_t equal_mask(Vec16 a, Vec16 b) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= lane_bits(a.v[i] == b.v[i]) << (4 * i);
  return out;
}

TAKT_VEC_INLINE Vec16 product_or_0(Vec16 x, Vec16 y, Vec16 a, Vec16 b) {
  const F32x4 zero = {};
  Vec16 out;
  for (int i = 0; i < 4; ++i) out.v[i] = select4(a.v[i] < b.v[i], zero, x.v[i] * y.v[i]);
  return out;
}

TAKT_VEC_INLINE Vec16 exponent_from_low_bits(Vec16 x) {
  Vec16 out;
  for (int i = 0; i < 4; ++i) {
    out.v[i] = reinterpret_cast<F32x4>(reinterpret_cast<U32x4>(x.v[i]) << 23);
  }
  return out;
}

TAKT_VEC_INLINE float sum_lanes(Vec16 x) {
  const F32x4 b = (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
TAKT_VEC_INLINE float max_lanes(Vec16 x) {
  const F32x4 b = max4(max4(x.v[0], x.v[2]), max4(x.v[1], x.v[3]));
  const float even = b[0] > b[2] ? b[0] : b[2];
  const float odd = b[1] > b[3] ? b[1] : b[3];
  return even > odd ? even : odd;
}

// Adding 1.5 * 2^52 leaves no bits behind the point: it rounds a double to an integer.
TAKT_VEC_INLINE void store_rounded(uint32_t* p, Vec16 x) {
  float lane[16];
  store(lane, x);
  for (int i = 0; i < 16; ++i) {
    const double shift = 0x1.8p52;
    p[i] = uint32_t((double(lane[i]) + shift) - shift);
  }
}

struct Vec16Pair {
  Vec16 even;
  Vec16 odd;
};
TAKT_VEC_INLINE Vec16Pair widen(const U32x4 (&bits)[4]) {
  Vec16Pair out;
  for (int i = 0; i < 4; ++i) {
    out.even.v[i] = reinterpret_cast<F32x4>(bits[i] << 16);
    out.odd.v[i] = reinterpret_cast<F32x4>(bits[i] & 0xffff0000u);
  }
  return out;
}
TAKT_VEC_INLINE Vec16Pair load_bf16_pair(const uint16_t* p) {
  U32x4 bits[4];
  std::memcpy(bits, p, sizeof(bits));
  return widen(bits);
}
TAKT_VEC_INLINE Vec16Pair load_bf16_pair_half(const uint16_t* p) {
  U32x4 bits[4] = {};
  std::memcpy(bits, p, sizeof(bits) / 2);
  return widen(bits);
}

TAKT_VEC_INLINE Vec16 load_bf16(const uint16_t* p) {
  Vec16 out;
  for (int i = 0; i < 4; ++i) {
    const uint16_t* q = p + 4 * i;
    out.v[i] = reinterpret_cast<F32x4>(U32x4{q[0], q[1], q[2], q[3]} << 16);
  }
  return out;
}

TAKT_VEC_INLINE Vec16 rounded_to_bf16(Vec16 x) {
  Vec16 out;
  for (int i = 0; i < 4; ++i) {
    const U32x4 bits = reinterpret_cast<U32x4>(x.v[i]);
    const U32x4 is_nan = reinterpret_cast<U32x4>(x.v[i] != x.v[i]);
    const U32x4 moved = bits + 0x7fffu + (bits >> 16 & 1u);
    const U32x4 nearest = ((moved & ~is_nan) | ((bits | 0x400000u) & is_nan)) & 0xffff0000u;
    const F32x4 size = reinterpret_cast<F32x4>(nearest & 0x7fffffffu);
    const I32x4 is_small = size < 0x1p-56f;
    out.v[i] = reinterpret_cast<F32x4>(nearest & ~reinterpret_cast<U32x4>(is_small));
  }
  return out;
}

TAKT_VEC_INLINE void store_rounded_bf16(uint16_t* p, Vec16 x) {
  const Vec16 near = rounded_to_bf16(x);
  for (int i = 0; i < 4; ++i) {
    const U32x4 codes = reinterpret_cast<U32x4>(near.v[i]) >> 16;
    for (int j = 0; j < 4; ++j) p[4 * i + j] = uint16_t(codes[j]);
  }
}

// In a float's place the code's exponent is 120 short of its own, 112 of that with 2^-8; the
// multiplication puts this right for subnormal and normal codes alike.
TAKT_VEC_INLINE F32x4 four_from_e4m3(const uint8_t* p) {
  const U32x4 codes = {p[0], p[1], p[2], p[3]};
  const F32x4 size = reinterpret_cast<F32x4>((codes & 0x7fu) << 20) * 0x1p112f;
  return reinterpret_cast<F32x4>(reinterpret_cast<U32x4>(size) | (codes & 0x80u) << 24);
}
TAKT_VEC_INLINE Vec16 load_e4m3(const uint8_t* p) {
  return {{four_from_e4m3(p), four_from_e4m3(p + 4), four_from_e4m3(p + 8),
           four_from_e4m3(p + 12)}};
}
TAKT_VEC_INLINE Vec16 load_e4m3_half(const uint8_t* p) {
  const F32x4 zero = {};
  return {{four_from_e4m3(p), four_from_e4m3(p + 4), zero, zero}};
}

}  // namespace takt::TAKT_ISA
