// Sixteen rows of sixteen 32-bit words, turned: word i of row j becomes word j of row i. Words are
// moved, never looked at.
#pragma once
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

#if defined(__AVX512F__)

TAKT_VEC_INLINE void transpose(Vec16 (&row)[kLanes]) {
  // Words of neighbouring rows, then pairs of words of rows two apart: quarter q of pair[4 g + c]
  // is word 4 q + c of rows 4 g to 4 g + 3.
  __m512d pair[kLanes];
  for (int g = 0; g < kLanes; g += 4) {
    const auto low = [&](int r) {
      return _mm512_castps_pd(_mm512_maskz_unpacklo_ps(kAllLanes, row[r].v, row[r + 1].v));
    };
    const auto high = [&](int r) {
      return _mm512_castps_pd(_mm512_maskz_unpackhi_ps(kAllLanes, row[r].v, row[r + 1].v));
    };
    pair[g] = _mm512_maskz_unpacklo_pd(0xff, low(g), low(g + 2));
    pair[g + 1] = _mm512_maskz_unpackhi_pd(0xff, low(g), low(g + 2));
    pair[g + 2] = _mm512_maskz_unpacklo_pd(0xff, high(g), high(g + 2));
    pair[g + 3] = _mm512_maskz_unpackhi_pd(0xff, high(g), high(g + 2));
  }
  // Then quarters: of rows four apart, and of those eight apart.
  for (int c = 0; c < 4; ++c) {
    const auto quarters = [&]<int kOrder>(__m512d a, __m512d b) {
      return _mm512_maskz_shuffle_f64x2(0xff, a, b, kOrder);
    };
    const __m512d first_low = quarters.template operator()<0x44>(pair[c], pair[4 + c]);
    const __m512d first_high = quarters.template operator()<0xee>(pair[c], pair[4 + c]);
    const __m512d last_low = quarters.template operator()<0x44>(pair[8 + c], pair[12 + c]);
    const __m512d last_high = quarters.template operator()<0xee>(pair[8 + c], pair[12 + c]);
    row[c].v = _mm512_castpd_ps(quarters.template operator()<0x88>(first_low, last_low));
    row[4 + c].v = _mm512_castpd_ps(quarters.template operator()<0xdd>(first_low, last_low));
    row[8 + c].v = _mm512_castpd_ps(quarters.template operator()<0x88>(first_high, last_high));
    row[12 + c].v = _mm512_castpd_ps(quarters.template operator()<0xdd>(first_high, last_high));
  }
}

#else

inline void transpose(Vec16 (&row)[kLanes]) {
  float from[kLanes][kLanes], to[kLanes][kLanes];
  for (int r = 0; r < kLanes; ++r) store(from[r], row[r]);
  for (int r = 0; r < kLanes; ++r) {
    for (int c = 0; c < kLanes; ++c) to[c][r] = from[r][c];
  }
  for (int r = 0; r < kLanes; ++r) row[r] = load(to[r]);
}

#endif

}  // namespace takt::TAKT_ISA
