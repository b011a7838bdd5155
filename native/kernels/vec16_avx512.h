// Vec16 on AVX-512 (F, BW, DQ, VL). Included by vec16.h only, which has the contract.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace takt::TAKT_ISA {

struct Vec16 {
  __m512 v;
};

// Some unmasked intrinsics of gcc 12 start from a register that it then warns of as uninitialised;
// those with a mask of all lanes compile to the same instruction.
inline constexpr __mmask16 kAllLanes = 0xffff;

TAKT_VEC_INLINE Vec16 set1(float x) { return {_mm512_set1_ps(x)}; }
TAKT_VEC_INLINE Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
TAKT_VEC_INLINE void store(float* p, Vec16 x) { _mm512_storeu_ps(p, x.v); }

TAKT_VEC_INLINE __mmask16 first_lanes(int count) { return __mmask16((1u << count) - 1); }
TAKT_VEC_INLINE Vec16 load_first(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
TAKT_VEC_INLINE void store_first(float* p, Vec16 x, int count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), x.v);
}

TAKT_VEC_INLINE Vec16 operator+(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TAKT_VEC_INLINE Vec16 operator-(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TAKT_VEC_INLINE Vec16 operator*(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TAKT_VEC_INLINE Vec16 operator/(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
TAKT_VEC_INLINE Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// a > b ? a : b, so b where either is NaN; min likewise.
TAKT_VEC_INLINE Vec16 max(Vec16 a, Vec16 b) { return {_mm512_maskz_max_ps(kAllLanes, a.v, b.v)}; }
TAKT_VEC_INLINE Vec16 min(Vec16 a, Vec16 b) { return {_mm512_maskz_min_ps(kAllLanes, a.v, b.v)}; }

// x in lanes [begin, end), `other` elsewhere; 0 <= begin <= end <= 16.
TAKT_VEC_INLINE Vec16 lanes_between(Vec16 x, int begin, int end, Vec16 other) {
  const uint32_t mask = ((1u << end) - 1) & ~((1u << begin) - 1);
  return {_mm512_mask_blend_ps(__mmask16(mask), other.v, x.v)};
}

// Bit i is set where a > b in lane i.
TAKT_VEC_INLINE uint32_t greater_mask(Vec16 a, Vec16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
TAKT_VEC_INLINE uint32_t equal_mask(Vec16 a, Vec16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}

// x * y, or 0 in lanes where a < b.
TAKT_VEC_INLINE Vec16 product_or_0(Vec16 x, Vec16 y, Vec16 a, Vec16 b) {
  return {_mm512_maskz_mul_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), x.v, y.v)};
}

// The float whose bits are those of x shifted left by 23.
TAKT_VEC_INLINE Vec16 exponent_from_low_bits(Vec16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, bits, 23))};
}

TAKT_VEC_INLINE __m256 low_half(Vec16 x) { return _mm512_maskz_extractf32x8_ps(0xff, x.v, 0); }
TAKT_VEC_INLINE __m256 high_half(Vec16 x) { return _mm512_maskz_extractf32x8_ps(0xff, x.v, 1); }

// Lanes i and i + 8, then 4, 2 and 1 apart.
TAKT_VEC_INLINE float sum_lanes(Vec16 x) {
  const __m256 a = _mm256_add_ps(low_half(x), high_half(x));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
TAKT_VEC_INLINE float max_lanes(Vec16 x) {
  const __m256 a = _mm256_max_ps(low_half(x), high_half(x));
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

// Rounds to the nearest integer, ties to even; each lane of x is in [0, 2^31 - 1].
TAKT_VEC_INLINE void store_rounded(uint32_t* p, Vec16 x) {
  _mm512_storeu_si512(p, _mm512_maskz_cvtps_epi32(kAllLanes, x.v));
}

struct Vec16Pair {
  Vec16 even;
  Vec16 odd;
};
// 32 bf16 at p, the values of even and of odd index. `half` reads 16, zeros behind them.
TAKT_VEC_INLINE Vec16Pair widen(__m512i bits) {
  const __m512i high = _mm512_set1_epi32(int(0xffff0000u));
  return {{_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, bits, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(bits, high))}};
}
TAKT_VEC_INLINE Vec16Pair load_bf16_pair(const uint16_t* p) {
  return widen(_mm512_loadu_si512(p));
}
TAKT_VEC_INLINE Vec16Pair load_bf16_pair_half(const uint16_t* p) {
  return widen(_mm512_maskz_loadu_epi32(0xff, p));
}

// 16 bf16 that follow each other.
TAKT_VEC_INLINE Vec16 load_bf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(kAllLanes, _mm512_maskz_cvtepu16_epi32(kAllLanes, bits), 16))};
}

// To the nearest bf16, ties to even, and to 0 below 2^-56 (round_bf16.h says why). A NaN stays one.
#if defined(__AVX512BF16__)
// Half a step below 2^-56 it is a tie, and rounds up.
TAKT_VEC_INLINE __m256i bf16_codes(Vec16 x) {
  const __m512 size = _mm512_abs_ps(x.v);
  const __mmask16 counts = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1.ffp-57f), _CMP_NLT_UQ);
  return reinterpret_cast<__m256i>(_mm512_maskz_cvtneps_pbh(counts, x.v));
}
TAKT_VEC_INLINE Vec16 rounded_to_bf16(Vec16 x) {
  const __m512i words = _mm512_maskz_cvtepu16_epi32(kAllLanes, bf16_codes(x));
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, words, 16))};
}
#else
TAKT_VEC_INLINE Vec16 rounded_to_bf16(Vec16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i is_odd = _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, bits, 16),
                                          _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
  const __m512i high = _mm512_set1_epi32(int(0xffff0000u));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_number = _mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q);
  const __m512i moved = _mm512_mask_add_epi32(quiet, is_number, bits, up);
  const __m512 nearest = _mm512_castsi512_ps(_mm512_and_si512(moved, high));
  const __mmask16 counts = _mm512_cmp_ps_mask(_mm512_abs_ps(nearest), _mm512_set1_ps(0x1p-56f),
                                              _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(counts, nearest)};
}
TAKT_VEC_INLINE __m256i bf16_codes(Vec16 x) {
  const __m512i bits = _mm512_castps_si512(rounded_to_bf16(x).v);
  return _mm512_maskz_cvtepi32_epi16(kAllLanes, _mm512_maskz_srli_epi32(kAllLanes, bits, 16));
}
#endif
TAKT_VEC_INLINE void store_rounded_bf16(uint16_t* p, Vec16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_codes(x));
}
// The same for x of which none is below 2^-56 but 0.
TAKT_VEC_INLINE void store_nearest_bf16(uint16_t* p, Vec16 x) {
#if defined(__AVX512BF16__)
  const __m256i codes = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
#else
  const __m256i codes = bf16_codes(x);
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
}

// 16 fp8 e4m3 times 2^-8; `half` reads 8, zeros behind them. Sign-extended and shifted, a code is a
// half with a bias of 15 instead of 7, but for the sign's copy in the top bit of the exponent. The
// code of NaN gives 480 * 2^-8.
TAKT_VEC_INLINE Vec16 floats_from_e4m3(__m128i bytes) {
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i halves = _mm256_and_si256(words, _mm256_set1_epi16(short(0xbfff)));
  return {_mm512_maskz_cvtph_ps(kAllLanes, halves)};
}
TAKT_VEC_INLINE Vec16 load_e4m3(const uint8_t* p) {
  return floats_from_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TAKT_VEC_INLINE Vec16 load_e4m3_half(const uint8_t* p) {
  return floats_from_e4m3(_mm_loadu_si64(p));
}

}  // namespace takt::TAKT_ISA
