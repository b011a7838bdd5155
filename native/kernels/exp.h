// exp and the functions made of it, on sixteen lanes; equal bits on every instruction set.
#pragma once
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

// e^x within 2^-23 of it, relative; exactly 1 at 0. Less than 2^-126 may come out as 0, more than
// 2^127.5 as infinity, NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 q(r); q is the polynomial of degree 4
// with the least relative error in e^r (2^-27.7, found by iteratively reweighted least squares).
TAKT_VEC_INLINE Vec16 exp(Vec16 x) {
  // Adding 1.5 * 2^23 + 127 rounds to an integer and leaves n + 127, a float's exponent, in the low
  // bits. The clamps keep that within [0, 255]: 2^n is then 0 or infinity at the ends.
  const Vec16 shift = set1(12583039.0f);
  x = max(set1(-88.0f), min(set1(88.8f), x));
  const Vec16 shifted = fma(x, set1(0x1.715476p+0f), shift);
  const Vec16 n = shifted - shift;
  // ln 2 in two parts; the first has 16 bits, so that its product with n is exact.
  Vec16 r = fma(n, set1(-0x1.62e4p-1f), x);
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  Vec16 q = set1(0x1.6a2352p-10f);
  q = fma(q, r, set1(0x1.123a6cp-7f));
  q = fma(q, r, set1(0x1.5558f4p-5f));
  q = fma(q, r, set1(0x1.55549p-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  const Vec16 e = set1(1.0f) + fma(r * r, q, r);
  return e * exponent_from_low_bits(shifted);
}

// e^x for x <= 0, as softmax needs it: within 2^-22 of 1, and within 2^-21.8 of e^x, relative;
// exactly 1 at 0, and 0 below e^-38.8, which is 2^-56 and a little. NaN stays NaN.
//
// The polynomial is of degree 5 (relative error 2^-23.2, found as above), and ln 2 is taken in one
// part: its error times n is least where weights are large.
TAKT_VEC_INLINE Vec16 exp_of_nonpositive(Vec16 x) {
  const Vec16 shift = set1(12583039.0f);
  const Vec16 shifted = fma(x, set1(0x1.715476p+0f), shift);
  const Vec16 r = fma(shifted - shift, set1(-0x1.62e43p-1f), x);
  Vec16 e = set1(0x1.10627ap-7f);
  e = fma(e, r, set1(0x1.572a06p-5f));
  e = fma(e, r, set1(0x1.5557aep-3f));
  e = fma(e, r, set1(0x1.fffdfcp-2f));
  e = fma(e, r, set1(1.0f));
  e = fma(e, r, set1(1.0f));
  return product_or_0(e, exponent_from_low_bits(shifted), x, set1(-38.8f));
}

// x / (1 + e^-x).
TAKT_VEC_INLINE Vec16 silu(Vec16 x) {
  return x / (set1(1.0f) + exp(set1(0.0f) - x));
}

// x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u).
TAKT_VEC_INLINE Vec16 gelu_tanh(Vec16 x) {
  const Vec16 cubic = fma(x * x, set1(0.044715f), set1(1.0f));
  const Vec16 minus_2u = (x * set1(-1.5957691216f)) * cubic;
  return x / (set1(1.0f) + exp(minus_2u));
}

// tanh x = 1 - 2 / (1 + e^2x), within 2^-22 of it, absolute.
TAKT_VEC_INLINE Vec16 tanh(Vec16 x) {
  return set1(1.0f) - set1(2.0f) / (set1(1.0f) + exp(x + x));
}

}  // namespace takt::TAKT_ISA
