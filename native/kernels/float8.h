// fp8 e4m3 (the variant without infinities) as the KV cache stores it.
#pragma once
#include <cstdint>

#include "kernels/float16.h"

namespace takt {

inline constexpr float kMaxE4M3 = 448.0f;

// Rounds to nearest, ties to even, and saturates: larger numbers and infinity become 448. NaN
// becomes the code of NaN, 0x7f or 0xff.
[[gnu::always_inline]] inline uint8_t e4m3_from_float(float x) {
  const uint32_t bits = bits_from_float(x);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const float size = float_from_bits(magnitude);
  const float limited = size < kMaxE4M3 ? size : kMaxE4M3;
  // Three bits of mantissa stay; the exponent's bias changes from 127 to 7.
  const uint32_t kept = bits_from_float(limited);
  const uint32_t normal = ((kept + 0x7ffffu + (kept >> 20 & 1)) >> 20) - (120u << 3);
  // Below 2^-6 numbers are multiples of 2^-9, the last bit of 2^14: adding that rounds to them.
  const uint32_t subnormal = bits_from_float(limited + 0x1p14f) - bits_from_float(0x1p14f);
  const uint32_t code = size < 0x1p-6f ? subnormal : normal;
  return uint8_t(sign | (magnitude > 0x7f800000u ? 0x7fu : code));
}

}  // namespace takt
