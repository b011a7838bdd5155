// Scalar conversions of 16-bit floats. Always inlined, so that no build for one instruction set
// becomes the shared definition of another (see isa.h).
#pragma once
#include <cstdint>
#include <cstring>

namespace takt {

[[gnu::always_inline]] inline float float_from_bits(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

[[gnu::always_inline]] inline uint32_t bits_from_float(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}

// Exact, subnormal numbers, infinities and NaN included. Moving the exponent field of an IEEE half
// into a float's place leaves it 112 short, which a multiplication by 2^112 puts right for
// subnormal and normal numbers alike; the largest exponent is infinity or NaN.
[[gnu::always_inline]] inline float float_from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t magnitude = uint32_t(half & 0x7fffu) << 13;
  const uint32_t finite = bits_from_float(float_from_bits(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  return float_from_bits(sign | (magnitude >= 0x0f800000u ? special : finite));
}

// To nearest, ties to even; too large becomes infinity, a NaN stays one.
[[gnu::always_inline]] inline uint16_t half_from_float(float x) {
  const uint32_t bits = bits_from_float(x);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {                                  // below 2^-14
    const float shifted = float_from_bits(magnitude) + 0.5f;      // 0.5's last bit is 2^-24
    return uint16_t(sign | (bits_from_float(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return uint16_t(sign | ((rounded >> 13) - (112u << 10)));
}

[[gnu::always_inline]] inline float float_from_bf16(uint16_t bf16) {
  return float_from_bits(uint32_t(bf16) << 16);
}

}  // namespace takt
