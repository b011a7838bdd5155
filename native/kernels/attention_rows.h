// What a row of attention sees of a split, and the weights that its scores become.
#pragma once
#include <cstdint>

#include "kernels/exp.h"
#include "kernels/kv_tiles.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

inline constexpr float kInfinity = __builtin_inff();

// Positions, counted from the start of the split; empty where begin >= end.
struct Range {
  int begin;
  int end;
};

TAKT_VEC_INLINE int least(int a, int b) { return a < b ? a : b; }
TAKT_VEC_INLINE int most(int a, int b) { return a > b ? a : b; }
TAKT_VEC_INLINE Range both(Range a, Range b) {
  return {most(a.begin, b.begin), least(a.end, b.end)};
}
TAKT_VEC_INLINE bool is_empty(Range r) { return r.begin >= r.end; }

// What the row at `position` sees of the split that starts at `start`.
TAKT_VEC_INLINE Range visible_to(const AttentionArgs& a, int64_t start, int32_t position) {
  const int64_t oldest = a.window > 0 ? position - a.window + 1 - start : -start;
  const int64_t newest = position - start;
  return {int(oldest < 0 ? 0 : oldest < kSplit ? oldest : kSplit),
          int(newest < 0 ? 0 : newest < kSplit ? newest + 1 : kSplit)};
}

// Gives the weights of V that the visible scores of a row become to `put(position, weights)`, 16 at
// a time; those of the edge tiles' positions that it does not see are 0 or not to be read. Writes
// max and sum.
template <class Type, class Put>
TAKT_VEC_INLINE void softmax(const AttentionArgs& a, const KVTiles<Type>& tiles, int64_t start,
                             Range visible, float* score, float* out, Put put) {
  const Vec16 least_score = set1(-kInfinity);
  const Vec16 cap = set1(a.softcap);
  const int first = visible.begin / int(kTile) * int(kTile);
  Vec16 lane_max = least_score;
  for (int p = first; p < visible.end; p += kTile) {
    Vec16 s = load(score + p);
    if constexpr (Type::kScales) s = s * tiles.key_scales(start + p);
    if (a.softcap != 0.0f) s = cap * tanh(s / cap);
    if (p < visible.begin || p + kTile > visible.end) {
      s = lanes_between(s, most(visible.begin - p, 0), least(visible.end - p, kTile), least_score);
    }
    store(score + p, s);
    lane_max = max(s, lane_max);
  }
  const float row_max = max_lanes(lane_max);
  Vec16 sum = set1(0.0f);
  for (int p = first; p < visible.end; p += kTile) {
    const Vec16 e = exp(load(score + p) - set1(row_max));
    sum = sum + e;
    if constexpr (Type::kScales) {
      put(p, e * tiles.value_scales(start + p));
    } else if constexpr (Type::kRounds) {
      put(p, rounded_to_bf16(e));
    } else {
      put(p, e * set1(Type::kScale));
    }
  }
  out[0] = row_max;
  out[1] = sum_lanes(sum);
}

}  // namespace takt::TAKT_ISA
