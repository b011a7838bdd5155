// Activations to int8, in groups of 32. The result is the same on every instruction set.
#include <cstdint>
#include <cstring>

#include "kernels/quantize_kernels.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace takt::TAKT_ISA {
namespace {

constexpr int kCount = 32;

// Below this (normal numbers end at 2^-126) a scale would lose bits or be 0: the group counts as
// zeros, an absolute error of less than 127 * 2^-126.
constexpr float kSmallestScale = 0x1p-126f;
constexpr float kLargestScale = 0x1.fffffep127f;

// Largest bit pattern of |x|; for numbers the order of patterns is that of values, and NaN, which
// float comparisons would lose, is above them all.
inline float max_abs(const float* x);

struct HalfSums {
  int32_t low;   // of q[0..15]
  int32_t high;  // of q[16..31]
};

// q = x * inverse, rounded to nearest, ties to even; |x * inverse| < 128.
inline HalfSums round_group(const float* x, float inverse, int8_t* q);

#if defined(__AVX512VNNI__)

inline float max_abs(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
  const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude);
  const uint32_t largest = _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
  float out;
  std::memcpy(&out, &largest, sizeof(out));
  return out;
}

inline HalfSums round_group(const float* x, float inverse, int8_t* q) {
  const __m512 scale = _mm512_set1_ps(inverse);
  const __m128i low = _mm512_cvtepi32_epi8(
      _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), scale)));
  const __m128i high = _mm512_cvtepi32_epi8(
      _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), scale)));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  std::memcpy(q, &both, sizeof(both));
  // Of q + 128, without sign, eight at a time.
  const __m256i moved = _mm256_xor_si256(both, _mm256_set1_epi8(int8_t(-128)));
  const __m256i eights = _mm256_sad_epu8(moved, _mm256_setzero_si256());
  const __m256i sums = _mm256_add_epi64(eights, _mm256_bsrli_epi128(eights, 8));
  return {_mm256_cvtsi256_si32(sums) - 16 * 128,
          _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)) - 16 * 128};
}

#else

// Added and subtracted, rounds |x| < 2^22 to the nearest integer, ties to even.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

inline float max_abs(const float* x) {
  uint32_t bits[kCount];
  std::memcpy(bits, x, sizeof(bits));
  uint32_t largest = 0;
  for (int i = 0; i < kCount; ++i) {
    const uint32_t magnitude = bits[i] & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  float out;
  std::memcpy(&out, &largest, sizeof(out));
  return out;
}

inline HalfSums round_group(const float* x, float inverse, int8_t* q) {
  int32_t rounded[kCount];
  for (int i = 0; i < kCount; ++i) rounded[i] = int32_t((x[i] * inverse + kRound) - kRound);
  HalfSums sums{0, 0};
  for (int i = 0; i < kCount / 2; ++i) sums.low += rounded[i];
  for (int i = kCount / 2; i < kCount; ++i) sums.high += rounded[i];
  for (int i = 0; i < kCount; ++i) q[i] = int8_t(rounded[i]);
  return sums;
}

#endif

// An infinity or NaN in the group makes its scale, and so every product with it, inf or NaN.
inline void quantize_group(const float* x, int8_t* q, float* scale, float* scaled_sum,
                           int16_t* sum) {
  const float amax = max_abs(x);
  const float s = amax / 127.0f;
  if (s < kSmallestScale || !(s <= kLargestScale)) {
    std::memset(q, 0, kCount);
    sum[0] = 0;
    sum[1] = 0;
    *scale = s < kSmallestScale ? 0.0f : s;
    *scaled_sum = *scale * 0.0f;
    return;
  }
  // A division for each value would take half of the time. Neither s nor its inverse is subnormal.
  const HalfSums sums = round_group(x, 127.0f / amax, q);
  *scale = s;
  *scaled_sum = s * float(sums.low + sums.high);
  sum[0] = int16_t(sums.low);
  sum[1] = int16_t(sums.high);
}

void quantize(const float* x, int64_t k, int8_t* q, float* scale, float* scaled_sum,
              int16_t* sum) {
  for (int64_t g = 0; g < k / kCount; ++g) {
    quantize_group(x + g * kCount, q + g * kCount, scale + g, scaled_sum + g, sum + 2 * g);
  }
}

}  // namespace

const QuantizeKernels kQuantizeKernels = {&quantize};

}  // namespace takt::TAKT_ISA
