// Lanes of lanes.h in AVX2 with F16C.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace takt::TAKT_ISA {

// Rows 0..7 and rows 8..15.
struct F32x16 {
  __m256 half[2];
};
struct I32x16 {
  __m256i half[2];
};
struct Bytes64 {
  __m256i half[2];
};

TAKT_INLINE F32x16 zero_f32() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
TAKT_INLINE F32x16 broadcast(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
TAKT_INLINE F32x16 load_f32(const std::byte* p) {
  const float* f = reinterpret_cast<const float*>(p);
  return {{_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)}};
}
TAKT_INLINE __m128i load_16_bytes(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
TAKT_INLINE __m128i load_8_bytes(const std::byte* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
TAKT_INLINE F32x16 load_f16(const std::byte* p) {
  return {{_mm256_cvtph_ps(load_16_bytes(p)), _mm256_cvtph_ps(load_16_bytes(p + 16))}};
}
TAKT_INLINE F32x16 load_bf16(const std::byte* p) {
  F32x16 out;
  for (int h = 0; h < 2; ++h) {
    const __m256i words = _mm256_cvtepu16_epi32(load_16_bytes(p + 16 * h));
    out.half[h] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  return out;
}
TAKT_INLINE F32x16 load_u8(const std::byte* p) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(p))),
           _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(p + 8)))}};
}
TAKT_INLINE F32x16 load_s8(const std::byte* p) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p))),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p + 8)))}};
}
TAKT_INLINE void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.half[0]);
  _mm256_storeu_ps(p + 8, a.half[1]);
}
TAKT_INLINE F32x16 add(F32x16 a, F32x16 b) {
  return {{_mm256_add_ps(a.half[0], b.half[0]), _mm256_add_ps(a.half[1], b.half[1])}};
}
TAKT_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  return {{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
}
TAKT_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]),
           _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}
TAKT_INLINE Bytes64 load_bytes(const std::byte* p) {
  return {{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))}};
}
TAKT_INLINE void store_bytes(std::byte* p, Bytes64 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.half[0]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.half[1]);
}
TAKT_INLINE F32x16 to_f32(I32x16 a) {
  return {{_mm256_cvtepi32_ps(a.half[0]), _mm256_cvtepi32_ps(a.half[1])}};
}

// 32 bytes of 0 or 16 from 32 bits.
TAKT_INLINE __m256i fifth_bits(const std::byte* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  const __m256i byte_of = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101,
                                             0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), byte_of);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

template <int kBits>
TAKT_INLINE void unpack(const std::byte* from, Bytes64* q) {
  const auto load = [](const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  };
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i high = _mm256_set1_epi8(0x30);
  for (int h = 0; h < 2; ++h) {
    const std::byte* at = from + 32 * h;
    if constexpr (kBits == 8) {
      for (int v = 0; v < 8; ++v) q[v].half[h] = load(at + 64 * v);
    } else {
      for (int v = 0; v < 4; ++v) {
        const __m256i pair = load(at + 64 * v);
        q[v].half[h] = _mm256_and_si256(pair, nibble);
        q[v + 4].half[h] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), nibble);
      }
    }
    if constexpr (kBits == 5) {
      for (int v = 0; v < 8; ++v) {
        q[v].half[h] = _mm256_or_si256(q[v].half[h], fifth_bits(from + 256 + 8 * v + 4 * h));
      }
    }
    if constexpr (kBits == 6) {
      for (int piece = 0; piece < 2; ++piece) {
        const __m256i pairs = load(at + 256 + 64 * piece);
        const __m256i shifted[4] = {_mm256_slli_epi16(pairs, 4), _mm256_slli_epi16(pairs, 2),
                                    pairs, _mm256_srli_epi16(pairs, 2)};
        for (int v = 0; v < 4; ++v) {
          __m256i* out = &q[4 * piece + v].half[h];
          *out = _mm256_or_si256(*out, _mm256_and_si256(shifted[v], high));
        }
      }
    }
  }
}

TAKT_INLINE __m256i broadcast_4_bytes(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm256_set1_epi32(word);
}

// maddubs adds two products into 16 bits with saturation. |x| <= 127, so `n` of its results can be
// added in 16 bits while 2 n (2^bits - 1) 127 <= 32767: n = 8 for 4 bits (30480), 4 for 5 bits
// (31496), 2 for 6 bits (32004). 8 bits would saturate at once; there the sign moves from the
// weight q - 128 to x, and 2 * 128 * 127 = 32512 fits.
template <int kBits, int kZero, int kVectors>
TAKT_INLINE I32x16 dot(const Bytes64* q, const int8_t* x, const int16_t* sum) {
  static_assert(kBits < 8 || kZero == 128);
  constexpr int kRun = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  constexpr int kStep = kRun < kVectors ? kRun : kVectors;
  const __m256i ones = _mm256_set1_epi16(1);
  I32x16 out;
  if constexpr (kBits == 8 || kZero == 0) {
    out.half[0] = _mm256_setzero_si256();
  } else if constexpr (kVectors == 8) {
    out.half[0] = _mm256_madd_epi16(broadcast_4_bytes(sum), _mm256_set1_epi16(-kZero));
  } else {
    out.half[0] = _mm256_set1_epi32(-kZero * sum[0]);
  }
  out.half[1] = out.half[0];
  for (int first = 0; first < kVectors; first += kStep) {
    __m256i run[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int v = first; v < first + kStep; ++v) {
      const __m256i x4 = broadcast_4_bytes(x + 4 * v);
      for (int h = 0; h < 2; ++h) {
        __m256i products;
        if constexpr (kBits == 8) {
          const __m256i w = _mm256_xor_si256(q[v].half[h], _mm256_set1_epi8(int8_t(-128)));
          products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x4, w));
        } else {
          products = _mm256_maddubs_epi16(q[v].half[h], x4);
        }
        run[h] = _mm256_add_epi16(run[h], products);
      }
    }
    for (int h = 0; h < 2; ++h) {
      out.half[h] = _mm256_add_epi32(out.half[h], _mm256_madd_epi16(run[h], ones));
    }
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
