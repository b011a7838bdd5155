// What products of float weights need beyond lanes.h. Every build gives the same bits:
//
//   load_pairs(p)               of each of 16 rows two successive bf16 weights (panel.h)
//   add_pairs(sum, w, x)        sum + w.odd * x.odd, then + w.even * x.even, each sum rounded once;
//                               `x` holds two successive bf16 activations, the even one below
//
// The CPU's own dot product of bf16 pairs adds in that order, rounds to nearest even, and takes
// subnormal numbers for zero. Weights and activations below kSmallestBf16 = 2^-56 were rounded to
// zero (round_bf16.h). So each is a multiple of 2^-63, products are multiples of 2^-126 and so are
// all sums: none is subnormal. A product of two bf16 numbers has 16 bits and is exact in f32. That is
// why a multiplication and an addition give the instruction's bits.
#pragma once
#include <cstring>

#include "kernels/float16.h"
#include "kernels/lanes.h"

namespace takt::TAKT_ISA {

#if defined(__AVX512BF16__)

using Bf16Pairs = __m512bh;

TAKT_INLINE Bf16Pairs load_pairs(const std::byte* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}
TAKT_INLINE F32x16 add_pairs(F32x16 sum, Bf16Pairs w, const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return _mm512_dpbf16_ps(sum, w, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
}

#else

struct Bf16Pairs {
  F32x16 even;
  F32x16 odd;
};

// sum + a * b where the product is exact.
TAKT_INLINE F32x16 add_exact(const F32x16& sum, const F32x16& a, const F32x16& b) {
#if defined(__AVX2__)
  return fma(a, b, sum);
#else
  return add(sum, mul(a, b));
#endif
}

TAKT_INLINE F32x16 add_pairs(const F32x16& sum, const Bf16Pairs& w, const uint16_t* x) {
  return add_exact(add_exact(sum, w.odd, broadcast(float_from_bf16(x[1]))), w.even,
                   broadcast(float_from_bf16(x[0])));
}

#if defined(__AVX512F__)
TAKT_INLINE Bf16Pairs load_pairs(const std::byte* p) {
  const __m512i pairs = _mm512_loadu_si512(p);
  const __m512i odd = _mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), _mm512_castsi512_ps(odd)};
}
#elif defined(__AVX2__)
TAKT_INLINE Bf16Pairs load_pairs(const std::byte* p) {
  Bf16Pairs out;
  for (int h = 0; h < 2; ++h) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + h);
    const __m256i odd = _mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u)));
    out.even.half[h] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    out.odd.half[h] = _mm256_castsi256_ps(odd);
  }
  return out;
}
#else
TAKT_INLINE Bf16Pairs load_pairs(const std::byte* p) {
  uint16_t bf16[32];
  std::memcpy(bf16, p, sizeof(bf16));
  Bf16Pairs out;
  for (int r = 0; r < 16; ++r) {
    out.even.lane[r] = float_from_bf16(bf16[2 * r]);
    out.odd.lane[r] = float_from_bf16(bf16[2 * r + 1]);
  }
  return out;
}
#endif

#endif  // __AVX512BF16__

}  // namespace takt::TAKT_ISA
