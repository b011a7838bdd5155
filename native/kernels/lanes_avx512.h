// Lanes of lanes.h in AVX-512 with VNNI.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace takt::TAKT_ISA {

using F32x16 = __m512;
using I32x16 = __m512i;
using Bytes64 = __m512i;

TAKT_INLINE F32x16 zero_f32() { return _mm512_setzero_ps(); }
TAKT_INLINE F32x16 broadcast(float x) { return _mm512_set1_ps(x); }
TAKT_INLINE F32x16 load_f32(const std::byte* p) { return _mm512_loadu_ps(p); }
TAKT_INLINE F32x16 load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TAKT_INLINE F32x16 load_bf16(const std::byte* p) {
  const __m256i bf16 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}
TAKT_INLINE F32x16 load_u8(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
TAKT_INLINE F32x16 load_s8(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
TAKT_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a); }
TAKT_INLINE F32x16 add(F32x16 a, F32x16 b) { return _mm512_add_ps(a, b); }
TAKT_INLINE F32x16 mul(F32x16 a, F32x16 b) { return _mm512_mul_ps(a, b); }
TAKT_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a, b, c); }
TAKT_INLINE Bytes64 load_bytes(const std::byte* p) { return _mm512_loadu_si512(p); }
TAKT_INLINE void store_bytes(std::byte* p, Bytes64 a) { _mm512_storeu_si512(p, a); }
TAKT_INLINE F32x16 to_f32(I32x16 a) { return _mm512_cvtepi32_ps(a); }

template <int kBits>
TAKT_INLINE void unpack(const std::byte* from, Bytes64* q) {
  if constexpr (kBits == 8) {
    for (int v = 0; v < 8; ++v) q[v] = _mm512_loadu_si512(from + 64 * v);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int v = 0; v < 4; ++v) {
    const __m512i pair = _mm512_loadu_si512(from + 64 * v);
    q[v] = _mm512_and_si512(pair, nibble);
    q[v + 4] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), nibble);
  }
  if constexpr (kBits == 5) {
    const __m512i high = _mm512_set1_epi8(16);
    for (int v = 0; v < 8; ++v) {
      uint64_t bits;
      std::memcpy(&bits, from + 256 + 8 * v, sizeof(bits));
      q[v] = _mm512_mask_add_epi8(q[v], _cvtu64_mask64(bits), q[v], high);
    }
  }
  if constexpr (kBits == 6) {
    constexpr int kAndOr = 0xf8;  // a | (b & c)
    const __m512i high = _mm512_set1_epi8(0x30);
    for (int piece = 0; piece < 2; ++piece) {
      const __m512i pairs = _mm512_loadu_si512(from + 256 + 64 * piece);
      __m512i* out = q + 4 * piece;
      out[0] = _mm512_ternarylogic_epi32(out[0], _mm512_slli_epi16(pairs, 4), high, kAndOr);
      out[1] = _mm512_ternarylogic_epi32(out[1], _mm512_slli_epi16(pairs, 2), high, kAndOr);
      out[2] = _mm512_ternarylogic_epi32(out[2], pairs, high, kAndOr);
      out[3] = _mm512_ternarylogic_epi32(out[3], _mm512_srli_epi16(pairs, 2), high, kAndOr);
    }
  }
}

TAKT_INLINE __m512i broadcast_4_bytes(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

template <int kZero, int kVectors>
TAKT_INLINE I32x16 zero_correction(const int16_t* sum) {
  if constexpr (kZero == 0) return _mm512_setzero_si512();
  if constexpr (kVectors == 4) return _mm512_set1_epi32(-kZero * sum[0]);
  return _mm512_madd_epi16(broadcast_4_bytes(sum), _mm512_set1_epi16(-kZero));
}

template <int kBits, int kZero, int kVectors>
TAKT_INLINE I32x16 dot(const Bytes64* q, const int8_t* x, const int16_t* sum) {
  static_assert(kVectors == 4 || kVectors == 8);
  __m512i out = zero_correction<kZero, kVectors>(sum);
  for (int v = 0; v < kVectors; ++v) {
    out = _mm512_dpbusd_epi32(out, q[v], broadcast_4_bytes(x + 4 * v));
  }
  return out;
}

// High nibbles stay where they are, sixteen times as large: a shift less for each vector.
template <int kBits>
TAKT_INLINE void unpack_raised(const std::byte* from, Bytes64* q) {
  if constexpr (kBits != 4) return unpack<kBits>(from, q);
  const __m512i low = _mm512_set1_epi8(15);
  for (int v = 0; v < 4; ++v) {
    const __m512i pair = _mm512_loadu_si512(from + 64 * v);
    q[v] = _mm512_and_si512(pair, low);
    q[v + 4] = _mm512_andnot_si512(low, pair);
  }
}

// Two chains of products, so that a lone row does not wait for each.
template <int kBits, int kZero, int kVectors>
TAKT_INLINE I32x16 dot_raised(const Bytes64* q, const int8_t* x, const int16_t* sum) {
  constexpr int kHalf = kVectors / 2;
  __m512i low = zero_correction<kZero, kVectors>(sum);
  __m512i high = _mm512_setzero_si512();
  for (int v = 0; v < kHalf; ++v) {
    low = _mm512_dpbusd_epi32(low, q[v], broadcast_4_bytes(x + 4 * v));
    high = _mm512_dpbusd_epi32(high, q[v + kHalf], broadcast_4_bytes(x + 4 * (v + kHalf)));
  }
  if constexpr (kBits == 4) high = _mm512_srai_epi32(high, 4);  // exact: of multiples of 16
  return _mm512_add_epi32(low, high);
}

}  // namespace takt::TAKT_ISA
