// Rows of attention over a cache of int8: queries and weights of V as whole numbers of 15 bits, and
// the scales that their products are to be multiplied by.
#pragma once
#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/int8_factors.h"
#include "kernels/kv_tiles.h"

namespace takt::TAKT_ISA {

// Bytes from one row of factors to the next, of queries and of weights.
inline constexpr int kFactorStride = 256;
static_assert(kFactorStride >= kMaxHeadDim && kFactorStride >= kSplit);

inline constexpr int kFactorsAtOnce = 64;

// From which position on to weigh tiles `first` to `last`, and up to which one.
TAKT_VEC_INLINE Range weighed_positions(int first, int last) {
  const auto group_start = [](int position) { return position / kFactorsAtOnce * kFactorsAtOnce; };
  return {group_start(first * int(kTile)), group_start(last * int(kTile) + kFactorsAtOnce - 1)};
}

// What a row's sums of products become: (sum - less) * factor.
struct RowFactor {
  int32_t less;  // of the zero of the cache's bytes, times the sum of the row's factors
  float factor;  // NaN where a result would be NaN, or an infinity, in floats
};

// A query [n] times `scale`, as factors relative to its largest element. The rows of factors have
// room for a multiple of 64 of them.
TAKT_VEC_INLINE RowFactor quantise_query(const float* q, int64_t n, float scale, uint8_t* first,
                                         uint8_t* second) {
  const Vec16 zero = set1(0.0f);
  Vec16 largest = zero;
  bool is_finite = true;
  for_each_vector(n, [&](int64_t d, int lanes) {
    const Vec16 x = load_some(q + d, lanes);
    largest = max(max(x, zero - x), largest);
    is_finite &= equal_mask(x, x) == 0xffff;
  });
  const float size = max_lanes(largest);
  is_finite &= size < kInfinity;
  const Vec16 inverse = set1(is_finite && size >= 0x1p-100f ? kFactorLimit / size : 0.0f);
  FactorSum sum = {};
  for (int64_t d = 0; d < n; d += kFactorsAtOnce) {
    FourVectors numbers;
    for (int i = 0; i < 4; ++i) {
      const int64_t left = n - d - i * kLanes;
      numbers.x[i] = left <= 0 ? zero
                               : load_some(q + d + i * kLanes, left < kLanes ? int(left) : kLanes) *
                                     inverse;
    }
    store_factors(numbers, first + d, second + d, &sum);
  }
  const float factor = is_finite ? size * (scale / kFactorLimit) : __builtin_nanf("");
  return {kInt8Zero * total(sum), factor};
}

// Scales of the positions of a split, in the order of positions.
struct SplitScales {
  alignas(64) float key[kSplit];
  alignas(64) float value[kSplit];
};

// Those of tiles `first` to `last` of the split that starts at `start`. An infinite scale of K,
// whose scores might be -infinity and count for nothing, becomes NaN.
TAKT_VEC_INLINE void load_scales(const KVTiles<Int8Tile>& tiles, int64_t start, int first, int last,
                                 SplitScales* scales) {
  for (int p = first * int(kTile); p < last * int(kTile); p += kTile) {
    const Vec16 key = tiles.key_scales(start + p);
    store(scales->key + p, key + (key - key));
    store(scales->value + p, tiles.value_scales(start + p));
  }
}

// x at positions from p on that are visible, 0 at others.
TAKT_VEC_INLINE Vec16 seen_of(Vec16 x, int p, Range visible) {
  return lanes_between(x, least(most(visible.begin - p, 0), int(kTile)),
                       most(least(visible.end - p, int(kTile)), 0), set1(0.0f));
}

// The largest of V's scales that a row sees, which its weights are relative to.
struct LargestScale {
  Range visible = {0, 0};
  float size = 0.0f;
  float inverse = 0.0f;  // of a weight that is as large
};

// Nothing is to be done if the row before saw the same.
TAKT_VEC_INLINE void find_largest(const float* value_scale, Range visible, LargestScale* largest) {
  if (visible.begin == largest->visible.begin && visible.end == largest->visible.end) return;
  Vec16 greatest = set1(0.0f);
  for (int p = first_position(visible); p < visible.end; p += kTile) {
    greatest = max(seen_of(load(value_scale + p), p, visible), greatest);
  }
  const float size = max_lanes(greatest);
  *largest = {visible, size, size > 0.0f && size < kInfinity ? kFactorLimit / size : 0.0f};
}

// Turns a row's scores into weights of V, times V's scales, as factors relative to the largest of
// those scales; of the 64 positions each from `begin` to `end`, and 0 where the row sees nothing.
// `sum_of_e` gets the sum of e^(score - greatest).
TAKT_VEC_INLINE RowFactor quantise_weights(const float* value_scale, const LargestScale& largest,
                                           int begin, int end, float greatest, const float* score,
                                           uint8_t* first, uint8_t* second, float* sum_of_e) {
  const Range visible = largest.visible;
  const Vec16 inverse = set1(largest.inverse), top = set1(greatest);
  Vec16 sum = set1(0.0f);
  FactorSum whole = {};
  const auto weight = [&](int p) __attribute__((always_inline)) {
    const Vec16 e = exp_of_nonpositive(load(score + p) - top);
    sum = sum + e;
    return e * load(value_scale + p) * inverse;
  };
  for (int group = begin; group < end; group += kFactorsAtOnce) {
    FourVectors weights;
    if (group >= visible.begin && group + kFactorsAtOnce <= visible.end) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) weights.x[i] = weight(group + i * int(kTile));
    } else {
      for (int i = 0; i < 4; ++i) {
        const int p = group + i * int(kTile);
        const bool is_seen = p + int(kTile) > visible.begin && p < visible.end;
        weights.x[i] = is_seen ? seen_of(weight(p), p, visible) : set1(0.0f);
      }
    }
    store_factors(weights, first + group, second + group, &whole);
  }
  *sum_of_e = sum_lanes(sum);
  const bool is_finite = *sum_of_e == *sum_of_e && largest.size < kInfinity;
  const float size = is_finite ? largest.size : __builtin_nanf("");
  return {kInt8Zero * total(whole), size * (1.0f / kFactorLimit)};
}

}  // namespace takt::TAKT_ISA
