// Attention of many rows over one split on AMX's matrix unit, from a cache of bf16 that it reads in
// place: a tile of K, 16 positions by 32 elements of the head, is a register's pairs, and so is one
// of V, 16 elements by 16 positions. What is computed is stated in attention_isa.cc.
//
// Rows go in blocks that fill a register, up to three of which share each load of K and V.
//
// A position that a row does not see has weight 0. Zeros change no bit of a chain; but the cache
// holds anything at positions that no row sees, so tiles with such positions are copied with zeros.
// A position that some rows see and others do not is the same sequence's: were its V infinite, as
// in a model that overflows, the others would be NaN too. No call has rows of two sequences.
#include <cstdint>
#include <cstring>

#include "kernels/attention_blocks.h"
#include "kernels/attention_kernels.h"
#include "kernels/attention_rows.h"
#include "kernels/kv_tiles.h"

namespace takt::amx {
namespace {

using Tiles = KVTiles<BF16Tile>;

// Rows of a batch: 16 tokens of 3 heads, or fewer of more heads. Several blocks to a batch, since
// the unit falls asleep some 600 cycles after a product and takes as many to wake, which it does
// twice for each batch. Products that nobody reads, put between softmax's rows to keep it awake,
// cost 60 cycles each and lost.
constexpr int kMaxBatch = kMaxBlocks * kTileRows;
// Fewer rows than this would leave most of a register empty.
constexpr int kMinRows = 9;
constexpr int kSplitTiles = int(kSplit / kTile);
constexpr int kPiece = 32;  // the head's elements that a register's row holds
// Floats from one row of scores to the next: were it a power of two, 16 rows' lines would meet in
// four sets of the first-level cache.
constexpr int kRowFloats = int(kSplit) + 16;
constexpr size_t kScoreStride = kRowFloats * sizeof(float);

// The tiles of the split that rows of a call see.
struct SeenTiles {
  const uint16_t* key[kSplitTiles];
  const uint16_t* value[kSplitTiles];
  alignas(64) uint16_t edge[2][kTile * kMaxHeadDim];
};

struct Batch {
  int count = 0;
  Range seen = {int(kSplit), 0};  // by any row
  int first;                      // tiles that some row sees
  int last;
  Range visible[kMaxBatch];
  float* out[kMaxBatch];
  alignas(64) uint16_t q[kMaxBatch * kMaxHeadDim];  // [num_blocks, head_dim / 32, 16, 32]
  alignas(64) float score[kMaxBatch * kRowFloats];  // then, in place, weights in bf16
  alignas(64) float sums[kMaxBatch * kMaxHeadDim];
};

uint16_t* weights_of(Batch* batch, int row) {
  return reinterpret_cast<uint16_t*>(batch->score + row * kRowFloats);
}

template <int kBlocks>
void score_all(const SeenTiles& seen, int64_t head_dim, Batch* batch) {
  const size_t block_bytes = size_t(kTileRows * head_dim) * sizeof(uint16_t);
  for (int t = batch->first; t < batch->last; ++t) {
    clear_sums<kBlocks>();
    for (int64_t at = 0; at < kTileRows * head_dim; at += kTileRows * kPiece) {
      add_products<kBlocks, Bf16Products>(batch->q + at, kTileRowBytes, block_bytes,
                                          seen.key[t] + at, kTileRowBytes);
    }
    store_sums<kBlocks>(batch->score + t * kTile, kRowFloats);
  }
}

template <int kBlocks>
void weigh_all(const SeenTiles& seen, int64_t head_dim, Batch* batch) {
  for (int64_t d = 0; d < head_dim; d += kTile) {
    clear_sums<kBlocks>();
    for (int t = batch->first; t < batch->last; ++t) {
      add_products<kBlocks, Bf16Products>(weights_of(batch, 0) + t * kTile, kScoreStride,
                                          kTileRows * kScoreStride, seen.value[t] + 2 * d,
                                          size_t(2 * head_dim) * sizeof(uint16_t));
    }
    store_sums<kBlocks>(batch->sums + d, head_dim);
  }
}

// Turns each row's scores into weights, those of all tiles that the batch sees. All rows' greatest
// scores first: the weights of one need not wait for its own then.
void softmax_all(const AttentionArgs& a, Batch* batch) {
  for (int r = 0; r < batch->count; ++r) {
    if (is_empty(batch->visible[r])) continue;
    batch->out[r][0] =
        greatest_score(a, batch->visible[r], batch->score + r * kRowFloats);
  }
  for (int r = 0; r < batch->count; ++r) {
    uint16_t* weight = weights_of(batch, r);
    const auto put = [weight](int p, Vec16 w) { store_nearest_bf16(weight + p, w); };
    const Range visible = batch->visible[r];
    int p = batch->first * int(kTile);
    if (!is_empty(visible)) {
      for (; p + kTile <= visible.begin; p += kTile) put(p, set1(0.0f));
      batch->out[r][1] = weigh_scores<BF16Tile>(visible, batch->out[r][0],
                                                batch->score + r * kRowFloats, put);
      p = (visible.end + int(kTile) - 1) / int(kTile) * int(kTile);
    }
    for (; p < batch->last * kTile; p += kTile) put(p, set1(0.0f));
  }
}

// V of a tile of which the rows see `seen` alone, counted from its start; zeros elsewhere.
void copy_seen(const uint16_t* tile, int64_t head_dim, Range seen, uint16_t* to) {
  std::memcpy(to, tile, size_t(kTile * head_dim) * sizeof(uint16_t));
  for (int p = 0; p < kTile; ++p) {
    if (p >= seen.begin && p < seen.end) continue;
    for (int64_t d = 0; d < head_dim; ++d) to[(p / 2 * head_dim + d) * 2 + p % 2] = 0;
  }
}

// Finds the tiles of what a call's rows see together.
void find_tiles(const Tiles& tiles, int64_t start, int64_t head_dim, Range seen, SeenTiles* found) {
  for (int t = seen.begin / int(kTile); t * int(kTile) < seen.end; ++t) {
    const int begin = t * int(kTile);
    found->key[t] = tiles.key(start + begin, nullptr);
    found->value[t] = tiles.value(start + begin, nullptr);
    if (begin < seen.begin || begin + kTile > seen.end) {
      uint16_t* edge = found->edge[begin < seen.begin ? 0 : 1];
      copy_seen(found->value[t], head_dim, {seen.begin - begin, seen.end - begin}, edge);
      found->value[t] = edge;
    }
  }
}

void add_row(const float* query, float scale, int64_t head_dim, Range visible, float* out,
             Batch* batch) {
  const int row = batch->count++;
  batch->visible[row] = visible;
  batch->out[row] = out;
  if (is_empty(visible)) {
    out[0] = -kInfinity;
    std::memset(out + 1, 0, size_t(1 + head_dim) * sizeof(float));
  } else {
    batch->seen = {least(batch->seen.begin, visible.begin), most(batch->seen.end, visible.end)};
  }
  uint16_t* to = batch->q + row / kTileRows * kTileRows * head_dim + row % kTileRows * kPiece;
  for (int64_t d = 0; d < head_dim; d += kPiece, to += kTileRows * kPiece) {
    store_rounded_bf16(to, load(query + d) * set1(scale));
    store_rounded_bf16(to + kLanes, load(query + d + kLanes) * set1(scale));
  }
}

template <int kBlocks>
void attend(const AttentionArgs& a, const SeenTiles& seen, Batch* batch) {
  const int64_t head_dim = a.kv.head_dim;
  batch->first = batch->seen.begin / int(kTile);
  batch->last = (batch->seen.end + int(kTile) - 1) / int(kTile);
  configure_blocks(kTileRowBytes, kTileRows);
  score_all<kBlocks>(seen, head_dim, batch);
  softmax_all(a, batch);
  configure_blocks(kTileRowBytes / 2, kTileRows / 2);
  weigh_all<kBlocks>(seen, head_dim, batch);
  for (int r = 0; r < batch->count; ++r) {
    if (is_empty(batch->visible[r])) continue;
    const float* sums = batch->sums + r * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes) store(batch->out[r] + 2 + d, load(sums + d));
  }
}

}  // namespace

bool split_of_many(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                   const int32_t* positions, const float* const* q, float* const* out) {
  const int64_t start = split * kSplit, head_dim = a.kv.head_dim;
  const int heads = int(a.num_heads_per_kv);
  const int total = m * heads;
  if (total < kMinRows || a.kv.type != KVType::kBF16 || a.kv.block_size % kTile != 0 ||
      head_dim % kPiece != 0 || kReadThroughCopy) {
    return false;
  }
  const Range seen = seen_by(a, start, m, positions);
  const Tiles tiles(a, kv_head, start + seen.begin, start + seen.end);
  SeenTiles seen_tiles;
  find_tiles(tiles, start, head_dim, seen, &seen_tiles);
  const int num_batches = (total + kMaxBatch - 1) / kMaxBatch;
  int token = 0, head = 0;
  for (int b = 0; b < num_batches; ++b) {  // of even sizes
    Batch batch;
    const int last = int(int64_t(total) * (b + 1) / num_batches);
    for (int row = int(int64_t(total) * b / num_batches); row < last; ++row) {
      add_row(q[token] + head * head_dim, a.scale, head_dim, visible_to(a, start, positions[token]),
              out[token] + head * int64_t(partial_floats(head_dim)), &batch);
      if (++head < heads) continue;
      head = 0;
      ++token;
    }
    if (is_empty(batch.seen)) continue;
    const auto attend_blocks = batch.count <= kTileRows       ? &attend<1>
                               : batch.count <= 2 * kTileRows ? &attend<2>
                                                              : &attend<3>;
    attend_blocks(a, seen_tiles, &batch);
  }
  release_tiles();
  return true;
}

}  // namespace takt::amx
