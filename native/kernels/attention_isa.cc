// Paged attention over one split of the context.
//
// A row is one query head of one token. It depends on nothing but its position and the cache:
//   score(p)   sum over the head's elements in order, one fused chain, of (q scale) * k
//   max        of the visible scores
//   sum        of e^(score - max): position p goes to lane p % 16 in order, then the lanes
//   weighted V one fused chain over the visible positions in order
// Rows are taken in groups that share each load of K and V; how they are grouped changes no bit.
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/exp.h"
#include "kernels/kv_tiles.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {
namespace {

// Rows of a group, and vectors of K or V taken with `rows` of them at once: as many sums as the
// registers hold, and enough of them to hide the latency of a fused multiply-add.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
constexpr int vectors_at_once(int rows) { return rows == 1 ? 8 : rows <= 4 ? 4 : 2; }
#elif defined(__AVX2__)
constexpr int kMaxRows = 4;
constexpr int vectors_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int kMaxRows = 2;
constexpr int vectors_at_once(int) { return 1; }
#endif

constexpr float kInfinity = __builtin_inff();

struct Range {
  int begin;
  int end;
};

// Rows of a group; positions count from the start of the split.
struct Rows {
  int count;
  float* out[kMaxRows];     // partial results
  Range visible[kMaxRows];  // empty where begin >= end
  alignas(64) float q[kMaxHeadDim * kMaxRows];     // [head_dim, count], scaled
  alignas(64) float weight[kMaxRows * kSplit];     // [count, kSplit]: scores, then e^(score - max)
  alignas(64) float tile_copy[kTile * kMaxHeadDim];
};

int least(int a, int b) { return a < b ? a : b; }
int most(int a, int b) { return a > b ? a : b; }

// scores [kRows, kSplit] of the positions of kTiles tiles, the first of which is at `score`.
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

// Scores of tiles [first, last), kTiles at once, then the rest with fewer.
template <int kRows, int kTiles, class Type>
void score_range(const KVTiles<Type>& tiles, int64_t head_dim, int64_t start, int first, int last,
                 Rows* rows) {
  using Element = typename Type::Element;
  if (kTiles > 1 && !tiles.in_place()) {  // room for the copy of one
    return score_range<kRows, 1, Type>(tiles, head_dim, start, first, last, rows);
  }
  for (; first + kTiles <= last; first += kTiles) {
    const Element* tile[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      tile[t] = tiles.key(start + (first + t) * kTile, reinterpret_cast<Element*>(rows->tile_copy));
    }
    score_tiles<kRows, kTiles, Type>(tile, head_dim, rows->q, rows->weight + first * kTile);
  }
  if constexpr (kTiles > 1) {
    score_range<kRows, kTiles / 2, Type>(tiles, head_dim, start, first, last, rows);
  }
}

// Turns the visible scores of a row into weights; those of the edge tiles that it does not see get
// 0. Writes max and sum.
void softmax(const AttentionArgs& a, Range visible, float* score, float* out) {
  const Vec16 least_score = set1(-kInfinity);
  const Vec16 cap = set1(a.softcap);
  const int first = visible.begin / int(kTile) * int(kTile);
  Vec16 lane_max = least_score;
  for (int p = first; p < visible.end; p += kTile) {
    Vec16 s = load(score + p);
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
    store(score + p, e);
    sum = sum + e;
  }
  out[0] = row_max;
  out[1] = sum_lanes(sum);
}

// Adds weight * V of the tile's positions [range.begin, range.end) to out[2 + d ...]: kVectors of
// 16 elements, or 8 elements with kHalf.
template <int kRows, int kVectors, bool kHalf, class Type>
void weigh(const typename Type::Element* tile, int64_t head_dim, int64_t d, const float* weight,
           Range range, float* const* out) {
  constexpr int kWidth = kHalf ? 8 : kLanes;
  Vec16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = load_some(out[r] + 2 + d + v * kLanes, kWidth);
    }
  }
  const auto add = [&](int pair, bool even, bool odd) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec16Pair value = Type::template value<kHalf>(tile, head_dim, pair, d + v * kLanes);
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
    for (int v = 0; v < kVectors; ++v) {
      store_some(out[r] + 2 + d + v * kLanes, sum[r][v], kWidth);
    }
  }
}

// All elements of the head from d on, kVectors at once, then the rest with fewer.
template <int kRows, int kVectors, class Type>
void weigh_head(const typename Type::Element* tile, int64_t head_dim, int64_t d,
                const float* weight, Range range, float* const* out) {
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    weigh<kRows, kVectors, false, Type>(tile, head_dim, d, weight, range, out);
  }
  if constexpr (kVectors > 1) {
    weigh_head<kRows, kVectors / 2, Type>(tile, head_dim, d, weight, range, out);
  } else if (d < head_dim) {
    weigh<kRows, 1, true, Type>(tile, head_dim, d, weight, range, out);
  }
}

// What `visible` covers of the tile that starts at p.
Range within_tile(Range visible, int p) {
  return {most(visible.begin - p, 0), least(visible.end - p, kTile)};
}

template <int kRows, class Type>
void weigh_tile(const typename Type::Element* tile, int64_t head_dim, int p, Rows* rows) {
  const Range range = within_tile(rows->visible[0], p);
  bool alike = true;
  for (int r = 1; r < kRows; ++r) {
    const Range other = within_tile(rows->visible[r], p);
    alike &= other.begin == range.begin && other.end == range.end;
  }
  if (alike) {
    if (range.begin >= range.end) return;
    weigh_head<kRows, vectors_at_once(kRows), Type>(tile, head_dim, 0, rows->weight + p, range,
                                                    rows->out);
    return;
  }
  for (int r = 0; r < kRows; ++r) {
    const Range own = within_tile(rows->visible[r], p);
    if (own.begin >= own.end) continue;
    weigh_head<1, vectors_at_once(1), Type>(tile, head_dim, 0, rows->weight + r * kSplit + p, own,
                                            rows->out + r);
  }
}

// One group; kRows is rows->count.
template <int kRows, class Type>
void attend_rows(const AttentionArgs& a, int64_t kv_head, int64_t start, Rows* rows) {
  Range seen = {int(kSplit), 0};
  for (int r = 0; r < kRows; ++r) {
    if (rows->visible[r].begin >= rows->visible[r].end) continue;
    seen.begin = least(seen.begin, rows->visible[r].begin);
    seen.end = most(seen.end, rows->visible[r].end);
  }
  if (seen.begin >= seen.end) return;
  const KVTiles<Type> tiles(a, kv_head, start + seen.begin, start + seen.end);
  const int first = seen.begin / int(kTile);
  const int last = (seen.end + int(kTile) - 1) / int(kTile);
  score_range<kRows, vectors_at_once(kRows), Type>(tiles, a.kv.head_dim, start, first, last, rows);
  for (int r = 0; r < kRows; ++r) {
    if (rows->visible[r].begin >= rows->visible[r].end) continue;
    softmax(a, rows->visible[r], rows->weight + r * kSplit, rows->out[r]);
  }
  auto* copy = reinterpret_cast<typename Type::Element*>(rows->tile_copy);
  for (int t = first; t < last; ++t) {
    const auto* tile = tiles.value(start + t * kTile, copy);
    weigh_tile<kRows, Type>(tile, a.kv.head_dim, t * int(kTile), rows);
  }
}

template <int kRows, class Type>
void attend(const AttentionArgs& a, int64_t kv_head, int64_t start, Rows* rows) {
  if (rows->count == kRows) return attend_rows<kRows, Type>(a, kv_head, start, rows);
  if constexpr (kRows > 1) attend<kRows - 1, Type>(a, kv_head, start, rows);
}

// Row r of the group: its visible positions, scaled query, and an empty partial result.
void set_row(const AttentionArgs& a, int64_t start, int32_t position, const float* q, float* out,
             int r, Rows* rows) {
  const int64_t oldest = a.window > 0 ? position - a.window + 1 - start : -start;
  const int64_t newest = position - start;
  rows->visible[r] = {int(oldest < 0 ? 0 : oldest < kSplit ? oldest : kSplit),
                      int(newest < 0 ? 0 : newest < kSplit ? newest + 1 : kSplit)};
  for (int64_t d = 0; d < a.kv.head_dim; ++d) rows->q[d * rows->count + r] = q[d] * a.scale;
  rows->out[r] = out;
  out[0] = -kInfinity;
  out[1] = 0.0f;
  for (int64_t d = 0; d < a.kv.head_dim; ++d) out[2 + d] = 0.0f;
}

void split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m, const int32_t* positions,
           const float* const* q, float* const* out) {
  const int64_t start = split * kSplit;
  const int heads = int(a.num_heads_per_kv);
  const int total = m * heads;
  const int num_groups = (total + kMaxRows - 1) / kMaxRows;
  const int64_t partial = 2 + a.kv.head_dim;
  Rows rows;
  for (int g = 0; g < num_groups; ++g) {  // of even sizes
    const int first = int(int64_t(total) * g / num_groups);
    rows.count = int(int64_t(total) * (g + 1) / num_groups) - first;
    for (int r = 0; r < rows.count; ++r) {
      const int token = (first + r) / heads;
      const int head = (first + r) % heads;
      set_row(a, start, positions[token], q[token] + head * a.kv.head_dim,
              out[token] + head * partial, r, &rows);
    }
    if (a.kv.type == KVType::kBF16) {
      attend<kMaxRows, BF16Tile>(a, kv_head, start, &rows);
    } else {
      attend<kMaxRows, F32Tile>(a, kv_head, start, &rows);
    }
  }
}

// Splits that a row sees nothing of have sum 0 and are passed over, so that it does not matter
// whether they are among the partials.
void combine(const float* partials, int64_t num_splits, int64_t stride, int64_t head_dim,
             float* out) {
  float row_max = -kInfinity;
  for (int64_t s = 0; s < num_splits; ++s) {
    const float split_max = partials[s * stride];
    row_max = split_max > row_max ? split_max : row_max;
  }
  for (int64_t d = 0; d < head_dim; ++d) out[d] = 0.0f;
  Vec16 sum = set1(0.0f);
  for (int64_t s = 0; s < num_splits; ++s) {
    const float* partial = partials + s * stride;
    if (partial[1] == 0.0f) continue;
    const Vec16 weight = exp(set1(partial[0] - row_max));
    sum = fma(weight, set1(partial[1]), sum);
    for_each_vector(head_dim, [&](int64_t d, int count) {
      const Vec16 before = load_some(out + d, count);
      store_some(out + d, fma(weight, load_some(partial + 2 + d, count), before), count);
    });
  }
  const Vec16 inverse = set1(1.0f) / max(sum, set1(0x1p-126f));
  for_each_vector(head_dim, [&](int64_t d, int count) {
    store_some(out + d, load_some(out + d, count) * inverse, count);
  });
}

}  // namespace

const AttentionKernels kAttentionKernels = {&split, &combine};

}  // namespace takt::TAKT_ISA
