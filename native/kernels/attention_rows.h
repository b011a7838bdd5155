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

// What the rows of a call see of a split together.
TAKT_VEC_INLINE Range seen_by(const AttentionArgs& a, int64_t start, int m,
                              const int32_t* positions) {
  Range seen = {int(kSplit), 0};
  for (int i = 0; i < m; ++i) {
    const Range visible = visible_to(a, start, positions[i]);
    if (is_empty(visible)) continue;
    seen = {least(seen.begin, visible.begin), most(seen.end, visible.end)};
  }
  return seen;
}

// Of the first tile that has visible positions.
TAKT_VEC_INLINE int first_position(Range visible) {
  return visible.begin / int(kTile) * int(kTile);
}

// Brings the scores of the tiles from `first` on to their final form, and those that the row does
// not see to -infinity.
TAKT_VEC_INLINE void finish_scores(const AttentionArgs& a, Range visible, int first,
                                   float* score) {
  if (a.softcap != 0.0f) {
    const Vec16 cap = set1(a.softcap);
    for (int p = first; p < visible.end; p += kTile) {
      store(score + p, cap * tanh(load(score + p) / cap));
    }
  }
  const Vec16 unseen = set1(-kInfinity);
  if (first < visible.begin) {
    store(score + first,
          lanes_between(load(score + first), visible.begin - first, kTile, unseen));
  }
  if (visible.end % kTile != 0) {
    float* last = score + visible.end / int(kTile) * int(kTile);
    store(last, lanes_between(load(last), 0, visible.end % int(kTile), unseen));
  }
}

// The greatest of a row's visible scores, which are brought to their final form.
TAKT_VEC_INLINE float greatest_score(const AttentionArgs& a, Range visible, float* score) {
  const int first = first_position(visible);
  finish_scores(a, visible, first, score);
  Vec16 even = set1(-kInfinity), odd = even;
  int p = first;
  for (; p + kTile < visible.end; p += 2 * kTile) {
    even = max(load(score + p), even);
    odd = max(load(score + p + kTile), odd);
  }
  if (p < visible.end) even = max(load(score + p), even);
  return max_lanes(max(odd, even));
}

// Gives the weights of V that a row's visible scores become to `put(position, weights)`, 16 at a
// time and not yet rounded; those of the edge tiles' positions that it does not see are 0 or not to
// be read. Returns the sum of e^(score - greatest).
template <class Type, class Put>
TAKT_VEC_INLINE float weigh_scores(Range visible, float greatest, const float* score, Put put) {
  Vec16 sum = set1(0.0f);
  for (int p = first_position(visible); p < visible.end; p += kTile) {
    const Vec16 e = exp_of_nonpositive(load(score + p) - set1(greatest));
    sum = sum + e;
    if constexpr (Type::kScale != 1.0f) {
      put(p, e * set1(Type::kScale));
    } else {
      put(p, e);
    }
  }
  return sum_lanes(sum);
}

}  // namespace takt::TAKT_ISA
