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

// The greatest of a row's visible scores, which are `score_at(position)`, 16 at a time. Stored are
// those that are to be weighed, -infinity at positions of their tiles that the row does not see.
template <class ScoreAt>
TAKT_VEC_INLINE float greatest_score(const AttentionArgs& a, Range visible, float* score,
                                     ScoreAt score_at) {
  const Vec16 unseen = set1(-kInfinity), cap = set1(a.softcap);
  Vec16 greatest = unseen;
  const auto finish = [&](int p, bool is_edge) __attribute__((always_inline)) {
    Vec16 s = score_at(p);
    if (a.softcap != 0.0f) s = cap * tanh(s / cap);
    if (is_edge) {
      s = lanes_between(s, most(visible.begin - p, 0), least(visible.end - p, int(kTile)), unseen);
    }
    store(score + p, s);
    greatest = max(s, greatest);
  };
  int p = first_position(visible);
  if (p < visible.begin) {
    finish(p, true);
    p += kTile;
  }
  for (; p + int(kTile) <= visible.end; p += kTile) finish(p, false);
  if (p < visible.end) finish(p, true);
  return max_lanes(greatest);
}

// Likewise, of scores that are stored.
TAKT_VEC_INLINE float greatest_score(const AttentionArgs& a, Range visible, float* score) {
  return greatest_score(a, visible, score, [score](int p) { return load(score + p); });
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
