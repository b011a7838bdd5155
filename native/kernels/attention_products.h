// The two products of attention, for a group of rows that share each load of K and V. A row is one
// query head of one token; how rows are grouped changes no bit of any.
#pragma once
#include <cstdint>

#include "kernels/kv_tiles.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

// Rows of a group, and vectors of K or V taken with `rows` of them at once: as many sums as the
// registers hold, and enough of them to hide the latency of a fused multiply-add.
#if defined(__AVX512F__)
inline constexpr int kMaxRows = 8;
constexpr int vectors_at_once(int rows) { return rows == 1 ? 8 : rows <= 4 ? 4 : 2; }
#elif defined(__AVX2__)
inline constexpr int kMaxRows = 4;
constexpr int vectors_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
inline constexpr int kMaxRows = 2;
constexpr int vectors_at_once(int) { return 1; }
#endif

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

struct Group {
  int count;
  const float* q;         // [head_dim, count], scaled
  float* weight;          // [count, kSplit]: scores, then weights of V
  float* const* sum;      // [count]: weighted V so far [head_dim]
  const Range* visible;   // [count]
};

// Scores [kRows] of the positions of kTiles tiles, the first of which is at `score`: a sum over the
// head's elements in order, one fused chain.
template <int kRows, int kTiles, class Type>
void score_tiles(const typename Type::Element* const* tile, int64_t head_dim, const float* q,
                 float* score) {
  Vec16 sum[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) sum[t][r] = set1(0.0f);
  }
  for (int64_t pair = 0; pair < head_dim / 2; ++pair, q += 2 * kRows) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      const Vec16Pair k = Type::key(tile[t], pair);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[t][r] = fma(set1(q[r]), k.even, sum[t][r]);
        sum[t][r] = fma(set1(q[kRows + r]), k.odd, sum[t][r]);
      }
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) store(score + r * kSplit + t * kTile, sum[t][r]);
  }
}

// Scores of `num_tiles` tiles, kTiles at once, then the rest with fewer.
template <int kRows, int kTiles, class Type>
void score_some(const typename Type::Element* const* tile, int num_tiles, int64_t head_dim,
                const float* q, float* score) {
  int t = 0;
  for (; t + kTiles <= num_tiles; t += kTiles) {
    score_tiles<kRows, kTiles, Type>(tile + t, head_dim, q, score + t * kTile);
  }
  if constexpr (kTiles > 1) {
    if (t < num_tiles) {
      score_some<kRows, kTiles / 2, Type>(tile + t, num_tiles - t, head_dim, q, score + t * kTile);
    }
  }
}

// Adds weight * V of positions `range` of `tile[0]`, `tile[1]`, ... to sum[d ...]: kVectors of 16
// elements, or 8 elements with kHalf. One fused chain over the positions in order.
template <int kRows, int kVectors, bool kHalf, class Type>
void weigh(const typename Type::Element* const* tile, int64_t head_dim, int64_t d,
           const float* weight, Range range, float* const* sum_of) {
  constexpr int kWidth = kHalf ? 8 : kLanes;
  Vec16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load_some(sum_of[r] + d + v * kLanes, kWidth);
  }
  const auto add = [&](int pair, bool even, bool odd) __attribute__((always_inline)) {
    const auto* at = tile[pair / (kTile / 2)];
    const int in_tile = pair % int(kTile / 2);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec16Pair value = Type::template value<kHalf>(at, head_dim, in_tile, d + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float* w = weight + r * kSplit + 2 * pair;
        if (even) sum[r][v] = fma(set1(w[0]), value.even, sum[r][v]);
        if (odd) sum[r][v] = fma(set1(w[1]), value.odd, sum[r][v]);
      }
    }
  };
  int position = range.begin;
  if (position % 2 != 0) {
    add(position / 2, false, true);
    ++position;
  }
  for (; position + 2 <= range.end; position += 2) add(position / 2, true, true);
  if (position < range.end) add(position / 2, true, false);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store_some(sum_of[r] + d + v * kLanes, sum[r][v], kWidth);
  }
}

// All elements of the head from d on, kVectors at once, then the rest with fewer.
template <int kRows, int kVectors, class Type>
void weigh_head(const typename Type::Element* const* tile, int64_t head_dim, int64_t d,
                const float* weight, Range range, float* const* sum) {
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    weigh<kRows, kVectors, false, Type>(tile, head_dim, d, weight, range, sum);
  }
  if constexpr (kVectors > 1) {
    weigh_head<kRows, kVectors / 2, Type>(tile, head_dim, d, weight, range, sum);
  } else if (d < head_dim) {
    weigh<kRows, 1, true, Type>(tile, head_dim, d, weight, range, sum);
  }
}

// Weighs tiles, the first of which starts at `p`, with the rows of a group: those positions at once
// that all rows see, and before and after them what each row sees alone (none but at a row's edges).
template <int kRows, class Type>
void weigh_tiles(const Group& group, const typename Type::Element* const* tile, int num_tiles,
                 int64_t head_dim, int p) {
  const Range tiles = {p, p + num_tiles * int(kTile)};
  Range shared = tiles;
  for (int r = 0; r < kRows; ++r) shared = both(shared, group.visible[r]);
  const auto alone = [&](int r, Range range) {
    if (is_empty(range)) return;
    weigh_head<1, vectors_at_once(1), Type>(tile, head_dim, 0, group.weight + r * kSplit + p,
                                            {range.begin - p, range.end - p}, group.sum + r);
  };
  if (is_empty(shared)) {
    for (int r = 0; r < kRows; ++r) alone(r, both(tiles, group.visible[r]));
    return;
  }
  for (int r = 0; r < kRows; ++r) alone(r, both({p, shared.begin}, group.visible[r]));
  weigh_head<kRows, vectors_at_once(kRows), Type>(tile, head_dim, 0, group.weight + p,
                                                  {shared.begin - p, shared.end - p}, group.sum);
  for (int r = 0; r < kRows; ++r) alone(r, both({shared.end, tiles.end}, group.visible[r]));
}

// The same with a group's number of rows as it comes.
template <class Type, int kRows = kMaxRows>
void score_group(const Group& group, const typename Type::Element* const* tile, int num_tiles,
                 int64_t head_dim, int p) {
  if (group.count == kRows) {
    return score_some<kRows, vectors_at_once(kRows), Type>(tile, num_tiles, head_dim, group.q,
                                                           group.weight + p);
  }
  if constexpr (kRows > 1) score_group<Type, kRows - 1>(group, tile, num_tiles, head_dim, p);
}
template <class Type, int kRows = kMaxRows>
void weigh_group(const Group& group, const typename Type::Element* const* tile, int num_tiles,
                 int64_t head_dim, int p) {
  if (group.count == kRows) {
    return weigh_tiles<kRows, Type>(group, tile, num_tiles, head_dim, p);
  }
  if constexpr (kRows > 1) weigh_group<Type, kRows - 1>(group, tile, num_tiles, head_dim, p);
}

}  // namespace takt::TAKT_ISA
