// Paged attention over one split of the context.
//
// A row is one query head of one token. It depends on nothing but its position and the cache:
//   score(p)   sum over the head's elements of (q scale) * k, in pieces of 32 elements: the fused
//              chain of a piece's even elements plus that of its odd ones, added to the sum before
//              it
//   max        of the visible scores
//   sum        of e^(score - max), 0 below 2^-56 (exp.h): position p goes to lane p % 16 in order,
//              then the lanes
//   weighted V sum over the visible positions in pieces of 16, at absolute multiples of 16: the
//              chain of a piece's even positions plus that of its odd ones
// With a cache of bf16, (q scale) and the weights are bf16 as well. All of its products are exact
// then, and AMX's unit gives the same bits (attention_amx.cc). Of int8 see int8_attention_isa.cc.
//
// Few rows widen K and V in registers. Many widen each tile once, into memory that stays near, and
// go over it group by group: the same operations on the same numbers.
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/attention_products.h"
#include "kernels/attention_rows.h"
#include "kernels/exp.h"
#include "kernels/kv_tiles.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {
namespace {

// Rows that share a widened tile: 16 tokens of 3 heads, or fewer of more heads.
constexpr int kMaxBatch = 48;
constexpr int kMaxGroups = kMaxBatch / kMaxRows;
// Tiles widened at once: 8 KiB of a head of 64 elements.
constexpr int kWidenedTiles = 2;
constexpr int kSplitTiles = int(kSplit / kTile);

static_assert(kSplit % kTile == 0 && kMaxBatch % kMaxRows == 0);

// What is read next, if it is known.
struct Ahead {
  int count = 0;
  const void* tile[kTilesAhead];
};

struct Batch {
  int count = 0;
  int num_groups;
  Group groups[kMaxGroups];
  Range seen = {int(kSplit), 0};  // by any row
  Ahead ahead;
  Range visible[kMaxBatch];
  float* out[kMaxBatch];  // partial results
  float* sum[kMaxBatch];
  alignas(64) float q[kMaxHeadDim * kMaxBatch];  // group by group [head_dim, group.count]
  alignas(64) float weight[kMaxBatch * kSplit];
  alignas(64) float sums[kMaxBatch * kMaxHeadDim];
  alignas(64) float copy[kTile * kMaxHeadDim];
  alignas(64) float widened[kWidenedTiles][kTile * kMaxHeadDim];
};

// All rows' greatest scores first: the weights of one need not wait for its own then.
template <class Type>
void softmax_all(const AttentionArgs& a, Batch* batch) {
  for (int r = 0; r < batch->count; ++r) {
    if (is_empty(batch->visible[r])) continue;
    batch->out[r][0] = greatest_score(a, batch->visible[r], batch->weight + r * kSplit);
  }
  for (int r = 0; r < batch->count; ++r) {
    if (is_empty(batch->visible[r])) continue;
    float* weight = batch->weight + r * kSplit;
    batch->out[r][1] = weigh_scores<Type>(
        batch->visible[r], batch->out[r][0], weight, [weight](int p, Vec16 w) {
          store(weight + p, Type::kRounds ? rounded_to_bf16(w) : w);
        });
  }
}

// One group whose tiles are copied before they are read, one by one.
template <class Type>
void attend_copies(const AttentionArgs& a, const KVTiles<Type>& tiles, int64_t start, int first,
                   int last, Batch* batch) {
  auto* copy = reinterpret_cast<typename Type::Element*>(batch->copy);
  for (int t = first; t < last; ++t) {
    const auto* tile = tiles.key(start + t * kTile, copy);
    score_group<Type, false>(batch->groups[0], &tile, 1, a.kv.head_dim, t * int(kTile));
  }
  softmax_all<Type>(a, batch);
  for (int t = first; t < last; ++t) {
    const auto* tile = tiles.value(start + t * kTile, copy);
    weigh_group<Type, false>(batch->groups[0], &tile, 1, a.kv.head_dim, t * int(kTile));
  }
}

// One group; K and V are widened in registers.
template <class Type>
void attend_few(const AttentionArgs& a, const KVTiles<Type>& tiles, int64_t start, int first,
                int last, Batch* batch) {
  const int64_t head_dim = a.kv.head_dim;
  const int count = last - first;
  // In the order of reading: K, then V, then what comes next; where that is not known, or too
  // short, nothing more is wanted.
  const typename Type::Element* tile[2 * kSplitTiles + kTilesAhead];
  const typename Type::Element* value = nullptr;
  for (int t = 0; t < count; ++t) {
    const int64_t position = start + (first + t) * kTile;
    tile[t] = tiles.key(position, nullptr);
    tile[count + t] = value = tiles.value(position, nullptr);
  }
  for (int t = 0; t < kTilesAhead; ++t) {
    const void* next = t < batch->ahead.count ? batch->ahead.tile[t] : value;
    tile[2 * count + t] = static_cast<const typename Type::Element*>(next);
  }
  for (int t = 0; t < least(kTilesAhead, count); ++t) tiles.prefetch(tile[t]);
  score_group<Type, true>(batch->groups[0], tile, count, head_dim, first * int(kTile));
  softmax_all<Type>(a, batch);
  weigh_group<Type, true>(batch->groups[0], tile + count, count, head_dim, first * int(kTile));
}

// F32Tile's layout of a tile of K, and of V.
template <class Type>
void widen_key(const typename Type::Element* tile, int64_t head_dim, float* to) {
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    const Vec16Pair k = Type::key(tile, pair);
    store(to + 2 * kTile * pair, k.even);
    store(to + 2 * kTile * pair + kTile, k.odd);
  }
}
template <class Type>
void widen_value(const typename Type::Element* tile, int64_t head_dim, float* to) {
  for (int64_t pair = 0; pair < kTile / 2; ++pair, to += 2 * head_dim) {
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) {
      const Vec16Pair v = Type::template value<false>(tile, head_dim, pair, d);
      store(to + d, v.even);
      store(to + head_dim + d, v.odd);
    }
    if (d < head_dim) {
      const Vec16Pair v = Type::template value<true>(tile, head_dim, pair, d);
      store_first(to + d, v.even, 8);
      store_first(to + head_dim + d, v.odd, 8);
    }
  }
}

// Many groups; each tile is widened once.
template <class Type>
void attend_many(const AttentionArgs& a, const KVTiles<Type>& tiles, int64_t start, int first,
                 int last, Batch* batch) {
  auto* copy = reinterpret_cast<typename Type::Element*>(batch->copy);
  const int64_t head_dim = a.kv.head_dim;
  const float* widened[kWidenedTiles];
  for (int i = 0; i < kWidenedTiles; ++i) widened[i] = batch->widened[i];
  for (int t = first; t < last; t += kWidenedTiles) {
    const int count = least(kWidenedTiles, last - t);
    for (int i = 0; i < count; ++i) {
      const auto* tile = tiles.key(start + (t + i) * kTile, copy);
      widen_key<Type>(tile, head_dim, batch->widened[i]);
    }
    for (int g = 0; g < batch->num_groups; ++g) {
      score_group<F32Tile, false>(batch->groups[g], widened, count, head_dim, t * int(kTile));
    }
  }
  softmax_all<Type>(a, batch);
  for (int t = first; t < last; t += kWidenedTiles) {
    const int count = least(kWidenedTiles, last - t);
    for (int i = 0; i < count; ++i) {
      const auto* tile = tiles.value(start + (t + i) * kTile, copy);
      widen_value<Type>(tile, head_dim, batch->widened[i]);
    }
    for (int g = 0; g < batch->num_groups; ++g) {
      weigh_group<F32Tile, false>(batch->groups[g], widened, count, head_dim, t * int(kTile));
    }
  }
}

template <class Type>
void attend(const AttentionArgs& a, int64_t kv_head, int64_t start, Batch* batch) {
  const Range seen = batch->seen;
  if (is_empty(seen)) return;
  const KVTiles<Type> tiles(a, kv_head, start + seen.begin, start + seen.end);
  const int first = seen.begin / int(kTile);
  const int last = (seen.end + int(kTile) - 1) / int(kTile);
  if (batch->num_groups > 1) {
    attend_many<Type>(a, tiles, start, first, last, batch);
  } else if (tiles.in_place()) {
    attend_few<Type>(a, tiles, start, first, last, batch);
  } else {
    attend_copies<Type>(a, tiles, start, first, last, batch);
  }
}

// Adds a row to the batch: its visible positions and an empty partial result.
void add_row(const AttentionArgs& a, int64_t start, int32_t position, float* out, Batch* batch) {
  const int r = batch->count++;
  const Range visible = batch->visible[r] = visible_to(a, start, position);
  if (!is_empty(visible)) {
    batch->seen = {least(batch->seen.begin, visible.begin), most(batch->seen.end, visible.end)};
  }
  batch->out[r] = out;
  batch->sum[r] = batch->sums + r * a.kv.head_dim;
  out[0] = -kInfinity;
  out[1] = 0.0f;
  for (int64_t d = 0; d < a.kv.head_dim; ++d) batch->sum[r][d] = 0.0f;
}

// Groups of even sizes; `query(r)` is row r's.
template <class Type, class Query>
void make_groups(int64_t head_dim, float scale, Query query, Batch* batch) {
  batch->num_groups = (batch->count + kMaxRows - 1) / kMaxRows;
  for (int g = 0; g < batch->num_groups; ++g) {
    const int first = batch->count * g / batch->num_groups;
    const int count = batch->count * (g + 1) / batch->num_groups - first;
    float* q = batch->q + first * head_dim;
    batch->groups[g] = {count, q, batch->weight + first * kSplit, batch->sum + first,
                        batch->visible + first};
    for (int r = 0; r < count; ++r) {
      const float* from = query(first + r);
      for_each_vector(head_dim, [&](int64_t d, int lanes) {
        const Vec16 scaled = load_some(from + d, lanes) * set1(scale);
        float one[kLanes];
        store(one, Type::kRounds ? rounded_to_bf16(scaled) : scaled);
        for (int i = 0; i < lanes; ++i) q[(d + i) * count + r] = one[i];
      });
    }
  }
}

// The first tiles of K that the rows see there.
template <class Type>
Ahead tiles_ahead(const AttentionArgs& a, AttentionNext next, int m, const int32_t* positions) {
  const int64_t start = next.split * kSplit;
  const Range seen = seen_by(a, start, m, positions);
  Ahead ahead;
  if (next.kv_head < 0 || is_empty(seen)) return ahead;
  const KVTiles<Type> tiles(a, next.kv_head, start + seen.begin, start + seen.end);
  if (!tiles.in_place()) return ahead;
  for (int p = first_position(seen); p < seen.end && ahead.count < kTilesAhead; p += kTile) {
    ahead.tile[ahead.count++] = tiles.key(start + p, nullptr);
  }
  return ahead;
}

template <class Type>
void split_of(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
              const int32_t* positions, const float* const* q, float* const* out,
              AttentionNext next) {
  const int64_t start = split * kSplit, head_dim = a.kv.head_dim;
  const int heads = int(a.num_heads_per_kv);
  const int total = m * heads;
  const int num_batches = (total + kMaxBatch - 1) / kMaxBatch;
  for (int b = 0; b < num_batches; ++b) {  // of even sizes
    Batch batch;
    const int first = int(int64_t(total) * b / num_batches);
    const int last = int(int64_t(total) * (b + 1) / num_batches);
    for (int row = first; row < last; ++row) {
      add_row(a, start, positions[row / heads],
              out[row / heads] + (row % heads) * (2 + head_dim), &batch);
    }
    const auto query = [&](int r) {
      return q[(first + r) / heads] + (first + r) % heads * head_dim;
    };
    // Scales of all positions alike are the query's.
    make_groups<Type>(head_dim, a.scale * Type::kScale, query, &batch);
    if (num_batches == 1) batch.ahead = tiles_ahead<Type>(a, next, m, positions);
    attend<Type>(a, kv_head, start, &batch);
    for (int r = 0; r < batch.count; ++r) {
      for_each_vector(head_dim, [&](int64_t d, int count) {
        store_some(batch.out[r] + 2 + d, load_some(batch.sum[r] + d, count), count);
      });
    }
  }
}

void split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m, const int32_t* positions,
           const float* const* q, float* const* out, AttentionNext next) {
  switch (a.kv.type) {
    case KVType::kBF16:
      return split_of<BF16Tile>(a, kv_head, split, m, positions, q, out, next);
    case KVType::kF32:
      return split_of<F32Tile>(a, kv_head, split, m, positions, q, out, next);
    case KVType::kFP8E4M3:
      return split_of<E4M3Tile>(a, kv_head, split, m, positions, q, out, next);
    case KVType::kInt8:  // int8_attention_isa.cc
      __builtin_trap();
  }
}

void merge(const float* next, int64_t head_dim, float* merged) {
  if (next[1] == 0.0f) return;
  if (merged[1] == 0.0f) {
    for_each_vector(2 + head_dim, [&](int64_t i, int count) {
      store_some(merged + i, load_some(next + i, count), count);
    });
    return;
  }
  const float row_max = next[0] > merged[0] ? next[0] : merged[0];
  const Vec16 before = exp(set1(merged[0] - row_max));
  const Vec16 after = exp(set1(next[0] - row_max));
  merged[0] = row_max;
  for_each_vector(1 + head_dim, [&](int64_t i, int count) {  // the sum, then the values
    const Vec16 kept = before * load_some(merged + 1 + i, count);
    store_some(merged + 1 + i, fma(after, load_some(next + 1 + i, count), kept), count);
  });
}

void finish(const float* merged, int64_t head_dim, float* out) {
  const Vec16 inverse = set1(1.0f) / max(set1(merged[1]), set1(0x1p-126f));
  for_each_vector(head_dim, [&](int64_t d, int count) {
    store_some(out + d, load_some(merged + 2 + d, count) * inverse, count);
  });
}

}  // namespace

const AttentionKernels kAttentionKernels = {&split, &merge, &finish};

}  // namespace takt::TAKT_ISA
