// Vec16 on AVX2 and FMA: two registers of eight. Included by vec16.h only, which has the contract;
// vec16_avx512.h explains each operation.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace takt::TAKT_ISA {

struct Vec16 {
  __m256 lo;
  __m256 hi;
};

TAKT_VEC_INLINE Vec16 set1(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
TAKT_VEC_INLINE Vec16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
TAKT_VEC_INLINE void store(float* p, Vec16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}

// All ones in lanes of [begin, end) of the eight that start with lane `first`.
TAKT_VEC_INLINE __m256i lane_mask(int first, int begin, int end) {
  const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                        _mm256_set1_epi32(first));
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                             _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
}
TAKT_VEC_INLINE Vec16 load_first(const float* p, int count) {
  return {_mm256_maskload_ps(p, lane_mask(0, 0, count)),
          _mm256_maskload_ps(p + 8, lane_mask(8, 0, count))};
}
TAKT_VEC_INLINE void store_first(float* p, Vec16 x, int count) {
  _mm256_maskstore_ps(p, lane_mask(0, 0, count), x.lo);
  _mm256_maskstore_ps(p + 8, lane_mask(8, 0, count), x.hi);
}

TAKT_VEC_INLINE Vec16 operator+(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
TAKT_VEC_INLINE Vec16 operator-(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
TAKT_VEC_INLINE Vec16 operator*(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
TAKT_VEC_INLINE Vec16 operator/(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
TAKT_VEC_INLINE Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TAKT_VEC_INLINE Vec16 max(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
TAKT_VEC_INLINE Vec16 min(Vec16 a, Vec16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

TAKT_VEC_INLINE Vec16 lanes_between(Vec16 x, int begin, int end, Vec16 other) {
  const __m256 lo = _mm256_castsi256_ps(lane_mask(0, begin, end));
  const __m256 hi = _mm256_castsi256_ps(lane_mask(8, begin, end));
  return {_mm256_blendv_ps(other.lo, x.lo, lo), _mm256_blendv_ps(other.hi, x.hi, hi)};
}

TAKT_VEC_INLINE uint32_t greater_mask(Vec16 a, Vec16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
  return uint32_t(lo) | uint32_t(hi) << 8;
}
TAKT_VEC_INLINE uint32_t equal_mask(Vec16 a, Vec16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
  return uint32_t(lo) | uint32_t(hi) << 8;
}

TAKT_VEC_INLINE Vec16 product_or_0(Vec16 x, Vec16 y, Vec16 a, Vec16 b) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ), _mm256_mul_ps(x.lo, y.lo)),
          _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ), _mm256_mul_ps(x.hi, y.hi))};
}

TAKT_VEC_INLINE Vec16 exponent_from_low_bits(Vec16 x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.lo), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.hi), 23))};
}

TAKT_VEC_INLINE float sum_lanes(Vec16 x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
TAKT_VEC_INLINE float max_lanes(Vec16 x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

TAKT_VEC_INLINE void store_rounded(uint32_t* p, Vec16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(x.lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvtps_epi32(x.hi));
}

struct Vec16Pair {
  Vec16 even;
  Vec16 odd;
};
TAKT_VEC_INLINE __m256 widen_even(__m256i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
TAKT_VEC_INLINE __m256 widen_odd(__m256i bits) {
  return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(int(0xffff0000u))));
}
TAKT_VEC_INLINE Vec16Pair load_bf16_pair(const uint16_t* p) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  return {{widen_even(lo), widen_even(hi)}, {widen_odd(lo), widen_odd(hi)}};
}
TAKT_VEC_INLINE Vec16Pair load_bf16_pair_half(const uint16_t* p) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256 zero = _mm256_setzero_ps();
  return {{widen_even(lo), zero}, {widen_odd(lo), zero}};
}

TAKT_VEC_INLINE Vec16 load_bf16(const uint16_t* p) {
  const auto half = [&](const uint16_t* q) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return widen_even(_mm256_cvtepu16_epi32(bits));
  };
  return {half(p), half(p + 8)};
}

TAKT_VEC_INLINE __m256 eight_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256 nearest =
      widen_odd(_mm256_blendv_epi8(_mm256_add_epi32(bits, up), quiet, is_nan));
  const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), nearest);
  return _mm256_and_ps(nearest, _mm256_cmp_ps(size, _mm256_set1_ps(0x1p-56f), _CMP_NLT_UQ));
}
TAKT_VEC_INLINE Vec16 rounded_to_bf16(Vec16 x) {
  return {eight_to_bf16(x.lo), eight_to_bf16(x.hi)};
}
TAKT_VEC_INLINE void store_rounded_bf16(uint16_t* p, Vec16 x) {
  const auto codes = [](__m256 y) { return _mm256_srli_epi32(_mm256_castps_si256(y), 16); };
  const Vec16 near = rounded_to_bf16(x);
  const __m256i mixed = _mm256_packus_epi32(codes(near.lo), codes(near.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}

TAKT_VEC_INLINE __m256 eight_from_e4m3(const uint8_t* p) {
  const __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadu_si64(p)), 7);
  return _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(short(0xbfff))));
}
TAKT_VEC_INLINE Vec16 load_e4m3(const uint8_t* p) {
  return {eight_from_e4m3(p), eight_from_e4m3(p + 8)};
}
TAKT_VEC_INLINE Vec16 load_e4m3_half(const uint8_t* p) {
  return {eight_from_e4m3(p), _mm256_setzero_ps()};
}

}  // namespace takt::TAKT_ISA
