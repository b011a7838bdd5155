// Rounding to bf16 for products: to nearest even, and to zero below kSmallestBf16, so that all
// instruction sets agree (float_lanes.h). What is lost is less than 2^-56 per factor.
#pragma once
#include <cstdint>

#include "kernels/float16.h"

namespace takt {

inline constexpr uint16_t kSmallestBf16 = (127 - 56) << 7;  // the bits of 2^-56

// Infinities stay; a NaN stays one.
[[gnu::always_inline]] inline uint16_t round_to_bf16(float x) {
  const uint32_t bits = bits_from_float(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t rounded = magnitude > 0x7f800000u ? (bits >> 16) | 0x40u : nearest;
  return uint16_t((rounded & 0x7fffu) < kSmallestBf16 ? 0u : rounded);
}

// `out` has room for k rounded up to an even number; what follows the last is 0.
void round_row_to_bf16(const float* x, int64_t k, uint16_t* out);

}  // namespace takt
