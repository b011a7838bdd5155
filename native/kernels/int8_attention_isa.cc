// Paged attention over one split of a cache of int8.
//
// A row is one query head of one token. Its query, and its weights of V times V's scales, are whole
// numbers of 15 bits times a factor of the row's own: of the query's largest element, and of the
// largest scale that the row sees. Products with the cache's bytes are exact then, and so are their
// sums, whatever their order:
//   score(p)   (sum over the head's elements of q * k) * K's scale at p * the row's factor
//   max        of the visible scores
//   sum        of e^(score - max), 0 below 2^-56 (exp.h): position p goes to lane p % 16 in order,
//              then the lanes
//   weighted V (sum over the visible positions of weight * v) * the row's factor
// A product of bytes takes an unsigned factor: the cache's bytes have kInt8Zero added, and so many
// times the sum of the row's factors is taken off again.
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/int8_rows.h"

namespace takt::TAKT_ISA {
namespace {

// Rows that share a load of K or V, and loads taken with `rows` of them at once: as many sums as
// the registers hold, and enough of them to hide the latency of a product.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
constexpr int loads_at_once(int rows) { return rows == 1 ? 4 : rows <= 4 ? 2 : 1; }
#else
constexpr int kMaxRows = 2;
constexpr int loads_at_once(int) { return 1; }
#endif

// Tiles lie apart in memory, out of the hardware's sight: each line is asked for so many tiles
// before it is read.
constexpr int kTilesAhead = 4;
constexpr int kSplitTiles = int(kSplit / kTile);
// Bytes of K or V that a load takes: four elements of 16 columns.
constexpr int kLoad = 64;

struct Row {
  float* out;  // partial result
  Range visible;
  RowFactor query;
  RowFactor weights;
};

struct Group {
  int count = 0;
  Row row[kMaxRows];
  alignas(64) uint8_t factors[2][kMaxRows * kFactorStride];  // of queries, then of weights
  alignas(64) float score[kMaxRows * kSplit];
};

// The tiles of the split that the rows of a call see: of K, of V, and what is read afterwards.
struct Tiles {
  int first;
  int last;
  const uint8_t* key[kSplitTiles + kTilesAhead];
  const uint8_t* value[kSplitTiles + kTilesAhead];
};

// Scores of kTiles tiles from tile[0] on, the first of which starts at `p`.
template <int kRows, int kTiles>
void score_tiles(const uint8_t* const* tile, int64_t head_dim, int p, const float* key_scale,
                 Group* group) {
  Sums sums[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) sums[t][r] = no_sums();
  }
  const uint8_t* first = group->factors[0];
  const uint8_t* second = group->factors[1];
  for (int64_t d = 0; d < head_dim; d += 4, first += 4, second += 4) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      const Columns columns = load_columns(tile[t] + kTile * d);
      __builtin_prefetch(tile[t + kTilesAhead] + kTile * d);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        add_products(columns, first + r * kFactorStride, second + r * kFactorStride, &sums[t][r]);
      }
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    const Vec16 scale = load(key_scale + p + t * kTile);
    for (int r = 0; r < kRows; ++r) {
      const RowFactor& query = group->row[r].query;
      const Vec16 score = floats_from(sums[t][r], query.less) * scale * set1(query.factor);
      store(group->score + r * kSplit + p + t * kTile, score);
    }
  }
}

template <int kRows, int kTiles = loads_at_once(kRows)>
void score_all(const Tiles& tiles, int t, int64_t head_dim, const float* key_scale, Group* group) {
  for (; t + kTiles <= tiles.last; t += kTiles) {
    score_tiles<kRows, kTiles>(tiles.key + t, head_dim, t * int(kTile), key_scale, group);
  }
  if constexpr (kTiles > 1) {
    if (t < tiles.last) score_all<kRows, kTiles / 2>(tiles, t, head_dim, key_scale, group);
  }
}

// Weighted V of elements [d, d + 16 kVectors) of the head, or of 8 with kHalf.
template <int kRows, int kVectors, bool kHalf>
void weigh(const Tiles& tiles, int64_t head_dim, int64_t d, Group* group) {
  Sums sums[kVectors][kRows];
  for (int v = 0; v < kVectors; ++v) {
    for (int r = 0; r < kRows; ++r) sums[v][r] = no_sums();
  }
  for (int t = tiles.first; t < tiles.last; ++t) {
    const uint8_t* first = group->factors[0] + t * kTile;
    const uint8_t* second = group->factors[1] + t * kTile;
    for (int four = 0; four < int(kTile) / 4; ++four, first += 4, second += 4) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = 4 * (four * head_dim + d) + v * kLoad;
        const Columns columns =
            kHalf ? load_columns_half(tiles.value[t] + at) : load_columns(tiles.value[t] + at);
        __builtin_prefetch(tiles.value[t + kTilesAhead] + at);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          add_products(columns, first + r * kFactorStride, second + r * kFactorStride,
                       &sums[v][r]);
        }
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int r = 0; r < kRows; ++r) {
      const Row& row = group->row[r];
      const Vec16 sum = floats_from(sums[v][r], row.weights.less) * set1(row.weights.factor);
      store_some(row.out + 2 + d + v * kLanes, sum, kHalf ? kLanes / 2 : kLanes);
    }
  }
}

template <int kRows, int kVectors = loads_at_once(kRows)>
void weigh_all(const Tiles& tiles, int64_t head_dim, int64_t d, Group* group) {
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    weigh<kRows, kVectors, false>(tiles, head_dim, d, group);
  }
  if constexpr (kVectors > 1) {
    weigh_all<kRows, kVectors / 2>(tiles, head_dim, d, group);
  } else if (d < head_dim) {
    weigh<kRows, 1, true>(tiles, head_dim, d, group);
  }
}

template <int kRows>
void attend(const AttentionArgs& a, const Tiles& tiles, const SplitScales& scales, Group* group) {
  const int64_t head_dim = a.kv.head_dim;
  score_all<kRows>(tiles, tiles.first, head_dim, scales.key, group);
  // All rows' greatest scores first: the weights of one need not wait for its own then.
  for (int r = 0; r < kRows; ++r) {
    Row& row = group->row[r];
    float* score = group->score + r * kSplit;
    row.out[0] = -kInfinity;
    if (is_empty(row.visible)) continue;
    row.out[0] = greatest_score(a, row.visible, score);
  }
  const Range positions = weighed_positions(tiles.first, tiles.last);
  LargestScale largest;
  for (int r = 0; r < kRows; ++r) {
    Row& row = group->row[r];
    find_largest(scales.value, row.visible, &largest);
    row.weights = quantise_weights(scales.value, largest, positions.begin, positions.end,
                                   row.out[0], group->score + r * kSplit,
                                   group->factors[0] + r * kFactorStride,
                                   group->factors[1] + r * kFactorStride, &row.out[1]);
  }
  weigh_all<kRows>(tiles, head_dim, 0, group);
}

// A group with its number of rows as it comes.
template <int kRows = kMaxRows>
void attend_group(const AttentionArgs& a, const Tiles& tiles, const SplitScales& scales,
                  Group* group) {
  if (group->count == kRows) return attend<kRows>(a, tiles, scales, group);
  if constexpr (kRows > 1) attend_group<kRows - 1>(a, tiles, scales, group);
}

// Room for tiles that are not read in place.
struct Copies {
  alignas(64) uint8_t key[kSplit * kMaxHeadDim];
  alignas(64) uint8_t value[kSplit * kMaxHeadDim];
};

void find_tiles(const KVTiles<Int8Tile>& tiles, int64_t start, int64_t head_dim, Range seen,
                Copies* copies, Tiles* found) {
  found->first = seen.begin / int(kTile);
  found->last = (seen.end + int(kTile) - 1) / int(kTile);
  for (int t = found->first; t < found->last; ++t) {
    found->key[t] = tiles.key(start + t * kTile, copies->key + t * kTile * head_dim);
    found->value[t] = tiles.value(start + t * kTile, copies->value + t * kTile * head_dim);
  }
}

// Names what is read after the call's tiles, and asks for the first of them.
void look_ahead(const AttentionArgs& a, const KVTiles<Int8Tile>& kv, AttentionNext next, int m,
                const int32_t* positions, Tiles* tiles) {
  const uint8_t* nothing = tiles->value[tiles->last - 1];
  for (int t = 0; t < kTilesAhead; ++t) {
    const int first = tiles->first + t;
    tiles->key[tiles->last + t] = first < tiles->last ? tiles->value[first] : nothing;
    tiles->value[tiles->last + t] = nothing;
  }
  for (int t = tiles->first; t < least(tiles->first + kTilesAhead, tiles->last); ++t) {
    kv.prefetch(tiles->key[t]);
  }
  if (next.kv_head < 0) return;
  const int64_t start = next.split * kSplit;
  const Range seen = seen_by(a, start, m, positions);
  if (is_empty(seen)) return;
  const KVTiles<Int8Tile> after(a, next.kv_head, start + seen.begin, start + seen.end);
  if (!after.in_place()) return;
  int t = tiles->last;
  for (int p = first_position(seen); p < seen.end && t < tiles->last + kTilesAhead; p += kTile) {
    tiles->value[t++] = after.key(start + p, nullptr);
  }
}

void split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m, const int32_t* positions,
           const float* const* q, float* const* out, AttentionNext next) {
  const int64_t start = split * kSplit, head_dim = a.kv.head_dim;
  const int heads = int(a.num_heads_per_kv), total = m * heads;
  const Range seen = seen_by(a, start, m, positions);
  if (is_empty(seen)) {
    for (int row = 0; row < total; ++row) {
      float* to = out[row / heads] + (row % heads) * int64_t(partial_floats(head_dim));
      for (int64_t i = 0; i < int64_t(partial_floats(head_dim)); ++i) to[i] = 0.0f;
      to[0] = -kInfinity;
    }
    return;
  }
  const KVTiles<Int8Tile> kv(a, kv_head, start + seen.begin, start + seen.end);
  Copies copies;
  Tiles tiles = {};
  SplitScales scales;
  find_tiles(kv, start, head_dim, seen, &copies, &tiles);
  look_ahead(a, kv, next, m, positions, &tiles);
  load_scales(kv, start, tiles.first, tiles.last, &scales);
  const int num_groups = (total + kMaxRows - 1) / kMaxRows;
  for (int g = 0; g < num_groups; ++g) {  // of even sizes
    Group group;
    const int first = int(int64_t(total) * g / num_groups);
    const int last = int(int64_t(total) * (g + 1) / num_groups);
    for (int at = first; at < last; ++at) {
      const int r = group.count++, token = at / heads, head = at % heads;
      Row& row = group.row[r];
      row.visible = visible_to(a, start, positions[token]);
      row.out = out[token] + head * int64_t(partial_floats(head_dim));
      row.query = quantise_query(q[token] + head * head_dim, head_dim, a.scale,
                                 group.factors[0] + r * kFactorStride,
                                 group.factors[1] + r * kFactorStride);
    }
    attend_group(a, tiles, scales, &group);
  }
}

}  // namespace

const Int8AttentionKernels kInt8AttentionKernels = {&split};

}  // namespace takt::TAKT_ISA
