// What a value becomes in the KV cache, the slow way.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kv.h"

namespace takt::test {

inline float as_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The value of an fp8 e4m3 code, by definition.
inline float value_of_e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa / 8.0, -6)
                                    : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return float(code & 0x80 ? -size : size);
}

// The nearest of all codes, which rise with their value; of two as near, the even one.
inline float as_e4m3(float x) {
  int below = 0, above = 0x7e;  // the largest not above |x|, and the next
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (value_of_e4m3(middle) <= std::abs(x) ? below : above) = middle;
  }
  const double down = double(std::abs(x)) - double(value_of_e4m3(below));
  const double up = double(value_of_e4m3(above)) - double(std::abs(x));
  const bool is_below = down < up || (down == up && below % 2 == 0);
  return std::copysign(value_of_e4m3(is_below ? below : above), x);
}

// The scale of a row of int8: its largest size over 127 in 8 bits of mantissa, rounded up.
inline float int8_scale(const float* x, int64_t n) {
  double largest = 0.0;
  for (int64_t d = 0; d < n; ++d) largest = std::max(largest, std::abs(double(x[d])));
  if (largest == 0.0) return 0.0f;
  int exponent;
  const double mantissa = std::frexp(largest / 127.0, &exponent);
  return float(std::ldexp(std::ceil(mantissa * 256.0) / 256.0, exponent));
}

// Replaces a token's k or v [n] by what the cache gives back. Rows are such that int8's scales are
// normal numbers.
inline void as_stored(KVType type, float* x, int64_t n) {
  const float scale = type == KVType::kInt8 ? int8_scale(x, n) : 1.0f;
  for (int64_t d = 0; d < n; ++d) {
    if (type == KVType::kBF16) x[d] = as_bf16(x[d]);
    if (type == KVType::kFP8E4M3) x[d] = as_e4m3(x[d]);
    if (type == KVType::kInt8 && scale > 0.0f) {
      x[d] = std::nearbyint(x[d] * (1.0f / scale)) * scale;
    }
  }
}

}  // namespace takt::test
