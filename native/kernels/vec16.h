// Sixteen float lanes with the same results on every instruction set.
//
// Each operation rounds once, as IEEE 754 says; `fma` is fused everywhere (emulated exactly where
// the build has no such instruction) and sums over lanes follow one tree. So code written once
// against Vec16 gives equal bits on every build.
#pragma once

#define TAKT_VEC_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "kernels/vec16_avx512.h"
#elif defined(__AVX2__)
#include "kernels/vec16_avx2.h"
#else
#include "kernels/vec16_generic.h"
#endif

#include <cstdint>

namespace takt::TAKT_ISA {

inline constexpr int kLanes = 16;

// Calls `f(i, count)` for the vectors of n elements; count is 16, but less for a last, short one.
template <class F>
TAKT_VEC_INLINE void for_each_vector(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, int(n - i));
}

// `count` floats, zeros behind them.
TAKT_VEC_INLINE Vec16 load_some(const float* p, int count) {
  return count == kLanes ? load(p) : load_first(p, count);
}
TAKT_VEC_INLINE void store_some(float* p, Vec16 x, int count) {
  if (count == kLanes) {
    store(p, x);
  } else {
    store_first(p, x, count);
  }
}

}  // namespace takt::TAKT_ISA
