// Lanes of lanes.h in plain C++: correct everywhere, fast nowhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/float16.h"

namespace takt::TAKT_ISA {

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};
struct Bytes64 {
  uint8_t byte[64];
};

TAKT_INLINE F32x16 broadcast(float x) {
  F32x16 out;
  for (float& lane : out.lane) lane = x;
  return out;
}
TAKT_INLINE F32x16 zero_f32() { return broadcast(0.0f); }
TAKT_INLINE F32x16 load_f32(const std::byte* p) {
  F32x16 out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
TAKT_INLINE F32x16 load_f16(const std::byte* p) {
  uint16_t half[16];
  std::memcpy(half, p, sizeof(half));
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = float_from_half(half[r]);
  return out;
}
TAKT_INLINE F32x16 load_bf16(const std::byte* p) {
  uint16_t bf16[16];
  std::memcpy(bf16, p, sizeof(bf16));
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = float_from_bf16(bf16[r]);
  return out;
}
TAKT_INLINE F32x16 load_u8(const std::byte* p) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = float(uint8_t(p[r]));
  return out;
}
TAKT_INLINE F32x16 load_s8(const std::byte* p) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = float(int8_t(p[r]));
  return out;
}
TAKT_INLINE void store(float* p, const F32x16& a) { std::memcpy(p, &a, sizeof(a)); }
TAKT_INLINE F32x16 add(const F32x16& a, const F32x16& b) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = a.lane[r] + b.lane[r];
  return out;
}
TAKT_INLINE F32x16 mul(const F32x16& a, const F32x16& b) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = a.lane[r] * b.lane[r];
  return out;
}
TAKT_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = __builtin_fmaf(a.lane[r], b.lane[r], c.lane[r]);
  return out;
}
TAKT_INLINE Bytes64 load_bytes(const std::byte* p) {
  Bytes64 out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
TAKT_INLINE void store_bytes(std::byte* p, const Bytes64& a) { std::memcpy(p, &a, sizeof(a)); }
TAKT_INLINE F32x16 to_f32(const I32x16& a) {
  F32x16 out;
  for (int r = 0; r < 16; ++r) out.lane[r] = float(a.lane[r]);
  return out;
}

// Not inlined, so that a vectoriser spends its time on them once and not for each kernel.
template <int kBits>
[[gnu::noinline]] void unpack(const std::byte* from, Bytes64* q) {
  if constexpr (kBits == 8) {
    std::memcpy(q, from, 8 * sizeof(Bytes64));
    return;
  }
  uint8_t packed[64 * kBits];
  std::memcpy(packed, from, sizeof(packed));
  for (int v = 0; v < 4; ++v) {
    for (int i = 0; i < 64; ++i) {
      q[v].byte[i] = packed[64 * v + i] & 15;
      q[v + 4].byte[i] = packed[64 * v + i] >> 4;
    }
  }
  if constexpr (kBits == 5) {
    const uint8_t* high = packed + 256;
    for (int v = 0; v < 8; ++v) {
      for (int i = 0; i < 64; ++i) {
        q[v].byte[i] = uint8_t(q[v].byte[i] | (high[8 * v + i / 8] >> (i % 8) & 1) << 4);
      }
    }
  }
  if constexpr (kBits == 6) {
    const uint8_t* high = packed + 256;
    for (int v = 0; v < 8; ++v) {
      for (int i = 0; i < 64; ++i) {
        q[v].byte[i] =
            uint8_t(q[v].byte[i] | (high[64 * (v / 4) + i] >> (2 * (v % 4)) & 3) << 4);
      }
    }
  }
}

template <int kBits, int kZero, int kVectors>
[[gnu::noinline]] I32x16 dot(const Bytes64* q, const int8_t* x, const int16_t* sum) {
  int32_t correction = 0;
  for (int s = 0; s < kVectors / 4; ++s) correction -= kZero * sum[s];
  I32x16 out;
  for (int r = 0; r < 16; ++r) {
    int32_t products = correction;
    for (int v = 0; v < kVectors; ++v) {
      for (int j = 0; j < 4; ++j) products += int32_t(q[v].byte[4 * r + j]) * x[4 * v + j];
    }
    out.lane[r] = products;
  }
  return out;
}

template <int kBits>
TAKT_INLINE void unpack_raised(const std::byte* from, Bytes64* q) {
  unpack<kBits>(from, q);
}
template <int kBits, int kZero, int kVectors>
TAKT_INLINE I32x16 dot_raised(const Bytes64* q, const int8_t* x, const int16_t* sum) {
  return dot<kBits, kZero, kVectors>(q, x, sum);
}

}  // namespace takt::TAKT_ISA
