// Exact products of bytes with whole numbers of 15 bits, which are summed for 16 columns at once.
//
// Columns lie as the instructions for bytes want them: four elements of each of 16 columns to 64
// bytes. A factor lies in two rows of as many bytes as there are factors. Where bytes have products
// of their own, the rows are its digits: factor = 128 * first + second, with first of [-127, 127]
// and second of [0, 127]. Elsewhere they are words, of the even and of the odd factors.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

// Sums of 256 products with bytes stay below 2^31.
inline constexpr float kFactorLimit = 127.0f * 128.0f;

// 64 numbers of at most kFactorLimit.
struct FourVectors {
  Vec16 x[4];
};

#if defined(__AVX512VNNI__)

struct FactorSum {
  __m512i lanes = _mm512_setzero_si512();
};
// Each lane's is of at most 16 factors: floats hold all of them together.
TAKT_VEC_INLINE int32_t total(const FactorSum& sum) {
  return int32_t(sum_lanes({_mm512_maskz_cvtepi32_ps(kAllLanes, sum.lanes)}));
}

// Writes 64 factors, the nearest whole numbers, ties to even, and adds them to a sum; 0 for a NaN.
TAKT_VEC_INLINE void store_factors(const FourVectors& numbers, uint8_t* first, uint8_t* second,
                                   FactorSum* sum) {
  __m512i whole[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 x = numbers.x[i].v;
    whole[i] = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
  }
  // Packing goes by lanes of 128 bits: words 0 to 3 of each vector, then words 4 to 7, and so on.
  const __m512i low = _mm512_packs_epi32(whole[0], whole[1]);
  const __m512i high = _mm512_packs_epi32(whole[2], whole[3]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto bytes = [&](__m512i a, __m512i b) {
    return _mm512_maskz_permutexvar_epi32(kAllLanes, order, _mm512_packs_epi16(a, b));
  };
  const __m512i last = _mm512_set1_epi16(127);
  _mm512_storeu_si512(first, bytes(_mm512_srai_epi16(low, 7), _mm512_srai_epi16(high, 7)));
  _mm512_storeu_si512(second, bytes(_mm512_and_si512(low, last), _mm512_and_si512(high, last)));
  const __m512i four = _mm512_add_epi32(_mm512_add_epi32(whole[0], whole[1]),
                                        _mm512_add_epi32(whole[2], whole[3]));
  sum->lanes = _mm512_add_epi32(sum->lanes, four);
}

// 64 bytes of 16 columns, or 32 of 8 with zeros behind them.
using Columns = __m512i;
TAKT_VEC_INLINE Columns load_columns(const uint8_t* p) { return _mm512_loadu_si512(p); }
TAKT_VEC_INLINE Columns load_columns_half(const uint8_t* p) {
  return _mm512_maskz_loadu_epi32(0xff, p);
}

struct Sums {
  __m512i first;
  __m512i second;
};
TAKT_VEC_INLINE Sums no_sums() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }

// Adds the columns' products with four factors.
TAKT_VEC_INLINE void add_products(Columns columns, const uint8_t* first, const uint8_t* second,
                                  Sums* sums) {
  const auto four = [](const uint8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof(word));
    return _mm512_set1_epi32(word);
  };
  sums->first = _mm512_dpbusd_epi32(sums->first, columns, four(first));
  sums->second = _mm512_dpbusd_epi32(sums->second, columns, four(second));
}

TAKT_VEC_INLINE Vec16 floats_from_sums(__m512i first, __m512i second, int32_t less) {
  const __m512i all = _mm512_add_epi32(_mm512_maskz_slli_epi32(kAllLanes, first, 7), second);
  const __m512i rest = _mm512_sub_epi32(all, _mm512_set1_epi32(less));
  return {_mm512_maskz_cvtepi32_ps(kAllLanes, rest)};
}
// The sums less a number, rounded once.
TAKT_VEC_INLINE Vec16 floats_from(const Sums& sums, int32_t less) {
  return floats_from_sums(sums.first, sums.second, less);
}

#else

using FactorSum = int32_t;
TAKT_VEC_INLINE int32_t total(FactorSum sum) { return sum; }

// Adding 1.5 * 2^23 leaves no bits behind the point.
TAKT_VEC_INLINE void store_factors(const FourVectors& numbers, uint8_t* first, uint8_t* second,
                                   FactorSum* sum) {
  float lane[4 * kLanes];
  for (int i = 0; i < 4; ++i) {
    store(lane + i * kLanes, (numbers.x[i] + set1(0x1.8p23f)) - set1(0x1.8p23f));
  }
  const auto factor = [](float x) { return int16_t(x == x ? x : 0.0f); };
  for (int i = 0; i < 4 * kLanes; i += 2) {
    const int16_t even = factor(lane[i]), odd = factor(lane[i + 1]);
    std::memcpy(first + i, &even, sizeof(even));
    std::memcpy(second + i, &odd, sizeof(odd));
    *sum += even + odd;
  }
}

#if defined(__AVX2__) && !defined(__AVX512F__)

// The even and the odd bytes of each half's columns, in words.
struct Columns {
  __m256i even[2];
  __m256i odd[2];
};
TAKT_VEC_INLINE void widen_columns(__m256i bytes, int half, Columns* out) {
  out->even[half] = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
  out->odd[half] = _mm256_srli_epi16(bytes, 8);
}
TAKT_VEC_INLINE Columns load_columns(const uint8_t* p) {
  Columns out;
  widen_columns(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 0, &out);
  widen_columns(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)), 1, &out);
  return out;
}
TAKT_VEC_INLINE Columns load_columns_half(const uint8_t* p) {
  Columns out;
  widen_columns(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 0, &out);
  out.even[1] = out.odd[1] = _mm256_setzero_si256();
  return out;
}

struct Sums {
  __m256i half[2];
};
TAKT_VEC_INLINE Sums no_sums() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }

TAKT_VEC_INLINE void add_products(const Columns& columns, const uint8_t* first,
                                  const uint8_t* second, Sums* sums) {
  const auto two = [](const uint8_t* p) {
    int32_t words;
    std::memcpy(&words, p, sizeof(words));
    return _mm256_set1_epi32(words);
  };
  const __m256i even = two(first), odd = two(second);
  for (int h = 0; h < 2; ++h) {
    const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(columns.even[h], even),
                                              _mm256_madd_epi16(columns.odd[h], odd));
    sums->half[h] = _mm256_add_epi32(sums->half[h], products);
  }
}

TAKT_VEC_INLINE Vec16 floats_from(const Sums& sums, int32_t less) {
  const __m256i bias = _mm256_set1_epi32(less);
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(sums.half[0], bias)),
          _mm256_cvtepi32_ps(_mm256_sub_epi32(sums.half[1], bias))};
}

#else

struct Columns {
  uint8_t byte[64];
};
TAKT_VEC_INLINE Columns load_columns(const uint8_t* p) {
  Columns out;
  std::memcpy(out.byte, p, 64);
  return out;
}
TAKT_VEC_INLINE Columns load_columns_half(const uint8_t* p) {
  Columns out = {};
  std::memcpy(out.byte, p, 32);
  return out;
}

struct Sums {
  int32_t lane[kLanes];
};
TAKT_VEC_INLINE Sums no_sums() { return {}; }

TAKT_VEC_INLINE void add_products(const Columns& columns, const uint8_t* first,
                                  const uint8_t* second, Sums* sums) {
  int16_t even[2], odd[2];
  std::memcpy(even, first, sizeof(even));
  std::memcpy(odd, second, sizeof(odd));
  for (int i = 0; i < kLanes; ++i) {
    const uint8_t* four = columns.byte + 4 * i;
    const int32_t of_even = four[0] * even[0] + four[2] * even[1];
    sums->lane[i] += of_even + four[1] * odd[0] + four[3] * odd[1];
  }
}

TAKT_VEC_INLINE Vec16 floats_from(const Sums& sums, int32_t less) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = float(sums.lane[i] - less);
  return load(lane);
}

#endif
#endif

}  // namespace takt::TAKT_ISA
