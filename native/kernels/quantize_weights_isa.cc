// Written for the compiler to vectorise: loops of fixed counts without branches, and sums of floats
// over 16 lanes that are added in one order, so that every instruction set gives the same bits.
#include <cstdint>

#include "kernels/float16.h"
#include "kernels/quantize_weights_kernels.h"

namespace takt::TAKT_ISA {
namespace {

constexpr int kCount = 32;
constexpr int kLanes = 16;
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: rounds |x| < 2^22 to an integer, ties to even

struct Lanes {
  float sum[kLanes] = {};

  float total() {
    for (int n = kLanes / 2; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) sum[i] += sum[i + n];
    }
    return sum[0];
  }
};

inline float round_to_integer(float x) { return (x + kRound) - kRound; }

inline float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

struct Range {
  float low;
  float high;
};

inline Range range_of(const float* x) {
  float low[kLanes], high[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const float a = x[i], b = x[i + kLanes];
    low[i] = a < b ? a : b;
    high[i] = a < b ? b : a;
  }
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) {
      low[i] = low[i + n] < low[i] ? low[i + n] : low[i];
      high[i] = high[i + n] > high[i] ? high[i + n] : high[i];
    }
  }
  return {low[0], high[0]};
}

// The scale is max |x| / 127, rounded up where f16 has no such number, so that no value is cut.
void q8_0(const float* x, uint16_t* scale, uint8_t* q) {
  const Range range = range_of(x);
  const float largest = (range.high > -range.low ? range.high : -range.low) + 0.0f;  // no -0
  uint16_t half = half_from_float(largest / 127.0f);
  if (float_from_half(half) * 127.0f < largest) ++half;
  *scale = half;
  const float d = float_from_half(half);
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  for (int i = 0; i < kCount; ++i) {
    q[i] = uint8_t(int32_t(clamp(round_to_integer(x[i] * inverse), -127.0f, 127.0f)) + 128);
  }
}

constexpr float kLevels = 15.0f;
// Narrower groups are one value; f16 ends long before.
constexpr float kSmallestWidth = 0x1p-60f;

inline void levels_of(const float* x, float min, float inverse, float* q) {
  for (int i = 0; i < kCount; ++i) {
    q[i] = clamp(round_to_integer((x[i] - min) * inverse), 0.0f, kLevels);
  }
}

inline float squared_error(const float* x, const float* q, float d, float min) {
  Lanes error;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kLanes; ++i) {
      const float e = d * q[kLanes * half + i] + min - x[kLanes * half + i];
      error.sum[i] += e * e;
    }
  }
  return error.total();
}

struct Line {
  float d;
  float min;
};

// Least squares of x over the levels q; `fallback` where all levels are equal.
inline Line fit(const float* x, const float* q, Line fallback) {
  Lanes q1, q2, x1, xq;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kLanes; ++i) {
      const float level = q[kLanes * half + i], value = x[kLanes * half + i];
      q1.sum[i] += level;
      q2.sum[i] += level * level;
      x1.sum[i] += value;
      xq.sum[i] += value * level;
    }
  }
  const float sum_q = q1.total(), sum_q2 = q2.total(), sum_x = x1.total(), sum_xq = xq.total();
  const float spread = kCount * sum_q2 - sum_q * sum_q;
  if (!(spread > 0.0f)) return fallback;
  const float d = (kCount * sum_xq - sum_x * sum_q) / spread;
  if (!(d > 0.0f)) return fallback;
  return {d, (sum_q2 * sum_x - sum_q * sum_xq) / spread};
}

constexpr int kTrials = 12;

// Least squared error over grids a little finer and coarser than the one from the lowest to the
// highest value, each moved to where it fits its own levels best.
void q4_1(const float* x, uint16_t* scale, uint16_t* min, uint8_t* q) {
  const Range range = range_of(x);
  const float width = range.high - range.low;
  Line best = {width / kLevels, range.low};
  float levels[kCount];
  if (width > kSmallestWidth) {
    levels_of(x, range.low, kLevels / width, levels);
    float least = squared_error(x, levels, best.d, best.min);
    for (int trial = 0; trial < kTrials; ++trial) {
      const float num_levels = 13.8f + 0.2f * float(trial);
      levels_of(x, range.low, num_levels / width, levels);
      const Line line = fit(x, levels, best);
      const float error = squared_error(x, levels, line.d, line.min);
      if (error < least) {
        least = error;
        best = line;
      }
    }
  }
  *scale = half_from_float(best.d);
  *min = half_from_float(best.min);
  const float d = float_from_half(*scale);
  levels_of(x, float_from_half(*min), d > 0.0f ? 1.0f / d : 0.0f, levels);
  for (int i = 0; i < kCount; ++i) q[i] = uint8_t(int32_t(levels[i]));
}

}  // namespace

const QuantizeWeightsKernels kQuantizeWeightsKernels = {&q8_0, &q4_1};

}  // namespace takt::TAKT_ISA
