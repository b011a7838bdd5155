// Activations to int8, in groups of 32. Written for the compiler to vectorise: each loop has a
// fixed count and no branch. The result is the same on every instruction set.
#include <cstdint>
#include <cstring>

#include "kernels/quantize_kernels.h"

namespace takt::TAKT_ISA {
namespace {

constexpr int kCount = 32;

// Added and subtracted, rounds |x| < 2^22 to the nearest integer, ties to even.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

// Below this (normal numbers end at 2^-126) a scale would lose bits or be 0: the group counts as
// zeros, an absolute error of less than 127 * 2^-126.
constexpr float kSmallestScale = 0x1p-126f;
constexpr float kLargestScale = 0x1.fffffep127f;

// Largest bit pattern of |x|; for numbers the order of patterns is that of values, and NaN, which
// float comparisons would lose, is above them all.
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
  int32_t rounded[kCount];
  for (int i = 0; i < kCount; ++i) rounded[i] = int32_t((x[i] / s + kRound) - kRound);
  int32_t low = 0;
  int32_t high = 0;
  for (int i = 0; i < kCount / 2; ++i) low += rounded[i];
  for (int i = kCount / 2; i < kCount; ++i) high += rounded[i];
  for (int i = 0; i < kCount; ++i) q[i] = int8_t(rounded[i]);
  *scale = s;
  *scaled_sum = s * float(low + high);
  sum[0] = int16_t(low);
  sum[1] = int16_t(high);
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
