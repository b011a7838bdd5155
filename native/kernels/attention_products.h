// The two products of attention, for a group of rows that share each load of K and V. A row is one
// query head of one token; how rows are grouped changes no bit of any.
#pragma once
#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/kv_tiles.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

// Rows of a group, and vectors of K or V taken with `rows` of them at once: as many sums, two for
// each, as the registers hold, and enough of them to hide the latency of a fused multiply-add.
#if defined(__AVX512F__)
inline constexpr int kMaxRows = 8;
constexpr int vectors_at_once(int rows) {
  return rows == 1 ? 8 : rows <= 3 ? 4 : rows == 4 ? 2 : 1;
}
#elif defined(__AVX2__)
inline constexpr int kMaxRows = 3;
constexpr int vectors_at_once(int rows) { return rows == 1 ? 2 : 1; }
#else
inline constexpr int kMaxRows = 2;
constexpr int vectors_at_once(int) { return 1; }
#endif

// Pairs of the head's elements, or of positions, whose products are summed before they are added
// to the sum so far: in two fused chains, of the even and of the odd ones, which are then added to
// each other. That is what AMX's product of bf16 does to a register's pairs.
inline constexpr int kKeyPairs = 16;
inline constexpr int kValuePairs = int(kTile) / 2;

// Tiles lie apart in memory, out of the hardware's sight, so each is asked for this many tiles
// before it is read, a line at a time between the multiplications of an earlier one. Asked for at
// once, a tile's 32 lines would fill the core's buffers for lines on their way, and the
// multiplications would wait behind the requests.
inline constexpr int kTilesAhead = 4;

struct Group {
  int count;
  const float* q;         // [head_dim, count], scaled
  float* weight;          // [count, kSplit]: scores, then weights of V
  float* const* sum;      // [count]: weighted V so far [head_dim]
  const Range* visible;   // [count]
};

// Asks for kBytes of a tile.
template <int64_t kBytes, class Element>
TAKT_VEC_INLINE void fetch(const Element* at) {
  const auto* line = reinterpret_cast<const std::byte*>(at);
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(line + i);
}

// Scores [kRows] of the positions of kTiles tiles, the first of which is at `score`: a sum over the
// head's elements, kKeyPairs pairs at a time. With kFetch `tile` goes on for kTilesAhead tiles,
// which are asked for.
template <int kRows, int kTiles, bool kFetch, class Type>
void score_tiles(const typename Type::Element* const* tile, int64_t head_dim, const float* q,
                 float* score) {
  Vec16 sum[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) sum[t][r] = set1(0.0f);
  }
  for (int64_t first = 0; first < head_dim / 2; first += kKeyPairs) {
    const int64_t rest = head_dim / 2 - first;
    const int64_t end = first + (rest < kKeyPairs ? rest : kKeyPairs);
    Vec16 even[kTiles][kRows], odd[kTiles][kRows];
    for (int t = 0; t < kTiles; ++t) {
      for (int r = 0; r < kRows; ++r) even[t][r] = odd[t][r] = set1(0.0f);
    }
    for (int64_t pair = first; pair < end; ++pair, q += 2 * kRows) {
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        const Vec16Pair k = Type::key(tile[t], pair);
        if constexpr (kFetch) {
          fetch<2 * kTile * sizeof(typename Type::Element)>(tile[t + kTilesAhead] +
                                                            2 * kTile * pair);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          even[t][r] = fma(set1(q[r]), k.even, even[t][r]);
          odd[t][r] = fma(set1(q[kRows + r]), k.odd, odd[t][r]);
        }
      }
    }
    for (int t = 0; t < kTiles; ++t) {
      for (int r = 0; r < kRows; ++r) sum[t][r] = sum[t][r] + (even[t][r] + odd[t][r]);
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) store(score + r * kSplit + t * kTile, sum[t][r]);
  }
}

// Scores of `num_tiles` tiles, kTiles at once, then the rest with fewer.
template <int kRows, int kTiles, bool kFetch, class Type>
void score_some(const typename Type::Element* const* tile, int num_tiles, int64_t head_dim,
                const float* q, float* score) {
  int t = 0;
  for (; t + kTiles <= num_tiles; t += kTiles) {
    score_tiles<kRows, kTiles, kFetch, Type>(tile + t, head_dim, q, score + t * kTile);
  }
  if constexpr (kTiles > 1) {
    if (t < num_tiles) {
      score_some<kRows, kTiles / 2, kFetch, Type>(tile + t, num_tiles - t, head_dim, q,
                                                  score + t * kTile);
    }
  }
}

// Adds weight * V of positions `range` of `tile[0]`, `tile[1]`, ... to sum[d ...]: kVectors of 16
// elements, or 8 elements with kHalf; tile by tile, so kValuePairs pairs at a time. With kFetch
// `tile` goes on for kTilesAhead tiles, which are asked for.
template <int kRows, int kVectors, bool kHalf, bool kFetch, class Type>
void weigh(const typename Type::Element* const* tile, int64_t head_dim, int64_t d,
           const float* weight, Range range, float* const* sum_of) {
  constexpr int kWidth = kHalf ? 8 : kLanes;
  Vec16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load_some(sum_of[r] + d + v * kLanes, kWidth);
  }
  for (int t = range.begin / int(kTile); t * int(kTile) < range.end; ++t) {
    Vec16 even[kRows][kVectors], odd[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) even[r][v] = odd[r][v] = set1(0.0f);
    }
    const float* tile_weight = weight + t * int(kTile);
    const auto add = [&](int pair, bool has_even, bool has_odd) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kFetch) {
          fetch<2 * kWidth * sizeof(typename Type::Element)>(
              tile[t + kTilesAhead] + 2 * (pair * head_dim + d + v * kLanes));
        }
        const Vec16Pair value =
            Type::template value<kHalf>(tile[t], head_dim, pair, d + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const float* w = tile_weight + r * kSplit + 2 * pair;
          if (has_even) even[r][v] = fma(set1(w[0]), value.even, even[r][v]);
          if (has_odd) odd[r][v] = fma(set1(w[1]), value.odd, odd[r][v]);
        }
      }
    };
    const Range seen = both({range.begin - t * int(kTile), range.end - t * int(kTile)},
                            {0, int(kTile)});
    int position = seen.begin;
    if (position % 2 != 0) {
      add(position / 2, false, true);
      ++position;
    }
    for (; position + 2 <= seen.end; position += 2) add(position / 2, true, true);
    if (position < seen.end) add(position / 2, true, false);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = sum[r][v] + (even[r][v] + odd[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store_some(sum_of[r] + d + v * kLanes, sum[r][v], kWidth);
  }
}

// All elements of the head from d on, kVectors at once, then the rest with fewer.
template <int kRows, int kVectors, bool kFetch, class Type>
void weigh_head(const typename Type::Element* const* tile, int64_t head_dim, int64_t d,
                const float* weight, Range range, float* const* sum) {
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    weigh<kRows, kVectors, false, kFetch, Type>(tile, head_dim, d, weight, range, sum);
  }
  if constexpr (kVectors > 1) {
    weigh_head<kRows, kVectors / 2, kFetch, Type>(tile, head_dim, d, weight, range, sum);
  } else if (d < head_dim) {
    weigh<kRows, 1, true, kFetch, Type>(tile, head_dim, d, weight, range, sum);
  }
}

// Weighs tiles, the first of which starts at `p`, with the rows of a group: those tiles at once
// that all rows see alike, before and after them what each sees alone (only at a row's edges).
template <int kRows, bool kFetch, class Type>
void weigh_tiles(const Group& group, const typename Type::Element* const* tile, int num_tiles,
                 int64_t head_dim, int p) {
  const Range tiles = {p, p + num_tiles * int(kTile)};
  Range shared = both(tiles, group.visible[0]);
  bool is_alike = true;
  for (int r = 1; r < kRows; ++r) {
    const Range other = both(tiles, group.visible[r]);
    is_alike = is_alike && other.begin == shared.begin && other.end == shared.end;
    shared = both(shared, other);
  }
  if (!is_alike) {
    shared.begin = (shared.begin + int(kTile) - 1) / int(kTile) * int(kTile);
    shared.end = shared.end / int(kTile) * int(kTile);
  }
  const auto alone = [&](int r, Range range) {
    if (is_empty(range)) return;
    weigh_head<1, vectors_at_once(1), false, Type>(tile, head_dim, 0, group.weight + r * kSplit + p,
                                                   {range.begin - p, range.end - p},
                                                   group.sum + r);
  };
  if (is_empty(shared)) {
    for (int r = 0; r < kRows; ++r) alone(r, both(tiles, group.visible[r]));
    return;
  }
  for (int r = 0; r < kRows; ++r) alone(r, both({p, shared.begin}, group.visible[r]));
  weigh_head<kRows, vectors_at_once(kRows), kFetch, Type>(
      tile, head_dim, 0, group.weight + p, {shared.begin - p, shared.end - p}, group.sum);
  for (int r = 0; r < kRows; ++r) alone(r, both({shared.end, tiles.end}, group.visible[r]));
}

// The same with a group's number of rows as it comes.
template <class Type, bool kFetch, int kRows = kMaxRows>
void score_group(const Group& group, const typename Type::Element* const* tile, int num_tiles,
                 int64_t head_dim, int p) {
  if (group.count == kRows) {
    return score_some<kRows, vectors_at_once(kRows), kFetch, Type>(tile, num_tiles, head_dim,
                                                                   group.q, group.weight + p);
  }
  if constexpr (kRows > 1) {
    score_group<Type, kFetch, kRows - 1>(group, tile, num_tiles, head_dim, p);
  }
}
template <class Type, bool kFetch, int kRows = kMaxRows>
void weigh_group(const Group& group, const typename Type::Element* const* tile, int num_tiles,
                 int64_t head_dim, int p) {
  if (group.count == kRows) {
    return weigh_tiles<kRows, kFetch, Type>(group, tile, num_tiles, head_dim, p);
  }
  if constexpr (kRows > 1) {
    weigh_group<Type, kFetch, kRows - 1>(group, tile, num_tiles, head_dim, p);
  }
}

}  // namespace takt::TAKT_ISA
