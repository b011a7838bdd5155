// Attention of many rows over one split on AMX's matrix unit, from a cache of bf16 that it reads in
// place: a tile of K, 16 positions by 32 elements of the head, is a register's pairs, and so is one
// of V, 16 elements by 16 positions. What is computed is stated in attention_isa.cc.
//
// A position that a row does not see has weight 0. Zeros change no bit of a chain; but the cache
// holds anything at positions that no row sees, so tiles with such positions are copied with zeros.
// A position that some rows see and others do not is the same sequence's: were its V infinite, as
// in a model that overflows, the others would be NaN too. No batch has rows of two sequences.
#include <cstdint>
#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/attention_rows.h"
#include "kernels/kv_tiles.h"
#include "kernels/tile_registers.h"

namespace takt::amx {
namespace {

using Tiles = KVTiles<BF16Tile>;

// Rows of a batch: 16 tokens of 3 heads, or fewer of more heads, in blocks that fill a register.
constexpr int kMaxBlocks = 3;
constexpr int kMaxBatch = kMaxBlocks * kTileRows;
// Fewer rows than this would leave most of a register empty.
constexpr int kMinRows = 9;
constexpr int kSplitTiles = int(kSplit / kTile);
constexpr int kPiece = 32;  // the head's elements that a register's row holds
constexpr int kColumns = 4;  // vectors of the head whose sums are in registers at once
// Floats from one row of scores to the next: were it a power of two, 48 rows' lines would meet in
// four sets of the first-level cache.
constexpr int kRowFloats = int(kSplit) + 16;
constexpr size_t kScoreStride = kRowFloats * sizeof(float);

// Registers while scores are made, and while V is weighed.
constexpr Tile kScore0 = Tile(0), kScore1 = Tile(1), kScore2 = Tile(2);
constexpr Tile kQueryA = Tile(3), kQueryB = Tile(4), kKeyA = Tile(5), kKeyB = Tile(6);
constexpr Tile kSum0 = Tile(0), kSum1 = Tile(1), kSum2 = Tile(2), kSum3 = Tile(3);
constexpr Tile kWeightsOfV = Tile(4), kValueA = Tile(5), kValueB = Tile(6);

struct Batch {
  int count;
  int num_blocks;
  int first;  // tiles of the split that some row sees
  int last;
  Range seen = {int(kSplit), 0};
  Range visible[kMaxBatch];
  float* out[kMaxBatch];
  const uint16_t* key[kSplitTiles];
  const uint16_t* value[kSplitTiles];
  alignas(64) uint16_t q[kMaxBatch * kMaxHeadDim];  // [num_blocks, head_dim / 32, 16, 32]
  alignas(64) float score[kMaxBatch * kRowFloats];  // then, in place, weights in bf16
  alignas(64) float sums[kMaxBatch * kMaxHeadDim];
  alignas(64) uint16_t edge[2][kTile * kMaxHeadDim];
};

uint16_t* weights_of(Batch* batch, int row) {
  return reinterpret_cast<uint16_t*>(batch->score + row * kRowFloats);
}

// Scores of the tile of K at `key` for the batch's blocks.
template <int kBlocks>
void score_tile(const uint16_t* key, int64_t head_dim, const uint16_t* q, float* score) {
  const int64_t block = kTileRows * head_dim;
  clear_tile<kScore0>();
  if constexpr (kBlocks > 1) clear_tile<kScore1>();
  if constexpr (kBlocks > 2) clear_tile<kScore2>();
  const auto add = [&]<Tile kKey>(int64_t piece) __attribute__((always_inline)) {
    const uint16_t* of_q = q + piece * kTileRows * kPiece;
    load_tile<kKey>(key + piece * kTile * kPiece, kTileRowBytes);
    load_tile<kQueryA>(of_q, kTileRowBytes);
    add_bf16_tile_products<kScore0, kQueryA, kKey>();
    if constexpr (kBlocks > 1) {
      load_tile<kQueryB>(of_q + block, kTileRowBytes);
      add_bf16_tile_products<kScore1, kQueryB, kKey>();
    }
    if constexpr (kBlocks > 2) {
      load_tile<kQueryA>(of_q + 2 * block, kTileRowBytes);
      add_bf16_tile_products<kScore2, kQueryA, kKey>();
    }
  };
  const int64_t num_pieces = head_dim / kPiece;
  for (int64_t piece = 0; piece < num_pieces; piece += 2) {
    add.template operator()<kKeyA>(piece);
    if (piece + 1 < num_pieces) add.template operator()<kKeyB>(piece + 1);
  }
  store_tile<kScore0>(score, kScoreStride);
  if constexpr (kBlocks > 1) store_tile<kScore1>(score + kTileRows * kRowFloats, kScoreStride);
  if constexpr (kBlocks > 2) store_tile<kScore2>(score + 2 * kTileRows * kRowFloats, kScoreStride);
}

void score_all(int64_t head_dim, Batch* batch) {
  TileConfig config;
  for (int tile = kScore0; tile <= kKeyB; ++tile) config.set(Tile(tile), kTileRows, kTileRowBytes);
  config.load();
  const auto score = batch->num_blocks == 1   ? &score_tile<1>
                     : batch->num_blocks == 2 ? &score_tile<2>
                                              : &score_tile<3>;
  for (int t = batch->first; t < batch->last; ++t) {
    score(batch->key[t], head_dim, batch->q, batch->score + t * kTile);
  }
}

// Turns each row's scores into weights, those of all tiles that the batch sees.
void weigh_scores(const AttentionArgs& a, const Tiles& tiles, int64_t start, Batch* batch) {
  const Vec16 zero = set1(0.0f);
  for (int r = 0; r < batch->count; ++r) {
    uint16_t* weight = weights_of(batch, r);
    const auto put = [weight](int p, Vec16 w) { store_bf16(weight + p, w); };
    const Range visible = batch->visible[r];
    int p = batch->first * int(kTile);
    if (!is_empty(visible)) {
      for (; p + kTile <= visible.begin; p += kTile) put(p, zero);
      softmax(a, tiles, start, visible, batch->score + r * kRowFloats, batch->out[r], put);
      p = (visible.end + int(kTile) - 1) / int(kTile) * int(kTile);
    }
    for (; p < batch->last * kTile; p += kTile) put(p, zero);
  }
}

// Sums of kNum vectors of the head from `d` on, for the block of rows at `weight`.
template <int kNum>
void weigh_columns(const Batch& batch, int64_t head_dim, int64_t d, const uint16_t* weight,
                   float* sums) {
  const size_t value_stride = size_t(2 * head_dim) * sizeof(uint16_t);
  const size_t sum_stride = size_t(head_dim) * sizeof(float);
  clear_tile<kSum0>();
  clear_tile<kSum1>();
  if constexpr (kNum > 2) clear_tile<kSum2>();
  if constexpr (kNum > 2) clear_tile<kSum3>();
  for (int t = batch.first; t < batch.last; ++t) {
    const uint16_t* value = batch.value[t] + 2 * d;
    load_tile<kWeightsOfV>(weight + t * kTile, kScoreStride);
    load_tile<kValueA>(value, value_stride);
    add_bf16_tile_products<kSum0, kWeightsOfV, kValueA>();
    load_tile<kValueB>(value + 2 * kTile, value_stride);
    add_bf16_tile_products<kSum1, kWeightsOfV, kValueB>();
    if constexpr (kNum > 2) {
      load_tile<kValueA>(value + 4 * kTile, value_stride);
      add_bf16_tile_products<kSum2, kWeightsOfV, kValueA>();
      load_tile<kValueB>(value + 6 * kTile, value_stride);
      add_bf16_tile_products<kSum3, kWeightsOfV, kValueB>();
    }
  }
  store_tile<kSum0>(sums + d, sum_stride);
  store_tile<kSum1>(sums + d + kTile, sum_stride);
  if constexpr (kNum > 2) store_tile<kSum2>(sums + d + 2 * kTile, sum_stride);
  if constexpr (kNum > 2) store_tile<kSum3>(sums + d + 3 * kTile, sum_stride);
}

void weigh_all(int64_t head_dim, Batch* batch) {
  TileConfig config;
  for (const Tile tile : {kSum0, kSum1, kSum2, kSum3}) config.set(tile, kTileRows, kTileRowBytes);
  config.set(kWeightsOfV, kTileRows, kTileRowBytes / 2);
  for (const Tile tile : {kValueA, kValueB}) config.set(tile, kTileRows / 2, kTileRowBytes);
  config.load();
  for (int block = 0; block < batch->num_blocks; ++block) {
    const uint16_t* weight = weights_of(batch, block * kTileRows);
    float* sums = batch->sums + block * kTileRows * head_dim;
    int64_t d = 0;
    for (; d + kColumns * kTile <= head_dim; d += kColumns * kTile) {
      weigh_columns<kColumns>(*batch, head_dim, d, weight, sums);
    }
    if (d < head_dim) weigh_columns<2>(*batch, head_dim, d, weight, sums);
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

void find_tiles(const Tiles& tiles, int64_t start, int64_t head_dim, Batch* batch) {
  const Range seen = batch->seen;
  batch->first = seen.begin / int(kTile);
  batch->last = (seen.end + int(kTile) - 1) / int(kTile);
  for (int t = batch->first; t < batch->last; ++t) {
    const int begin = t * int(kTile);
    batch->key[t] = tiles.key(start + begin, nullptr);
    batch->value[t] = tiles.value(start + begin, nullptr);
    if (begin < seen.begin || begin + kTile > seen.end) {
      uint16_t* edge = batch->edge[begin < seen.begin ? 0 : 1];
      copy_seen(batch->value[t], head_dim, {seen.begin - begin, seen.end - begin}, edge);
      batch->value[t] = edge;
    }
  }
}

void put_query(const float* from, float scale, int64_t head_dim, int row, Batch* batch) {
  uint16_t* to = batch->q + row / kTileRows * kTileRows * head_dim + row % kTileRows * kPiece;
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    store_bf16(to + d / kPiece * kTileRows * kPiece + d % kPiece,
               rounded_to_bf16(load(from + d) * set1(scale)));
  }
}

void attend(const AttentionArgs& a, int64_t kv_head, int64_t start, Batch* batch) {
  const int64_t head_dim = a.kv.head_dim;
  const Tiles tiles(a, kv_head, start + batch->seen.begin, start + batch->seen.end);
  find_tiles(tiles, start, head_dim, batch);
  score_all(head_dim, batch);
  weigh_scores(a, tiles, start, batch);
  weigh_all(head_dim, batch);
  for (int r = 0; r < batch->count; ++r) {
    if (is_empty(batch->visible[r])) continue;
    std::memcpy(batch->out[r] + 2, batch->sums + r * head_dim, size_t(head_dim) * sizeof(float));
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
  const int num_batches = (total + kMaxBatch - 1) / kMaxBatch;
  for (int b = 0; b < num_batches; ++b) {  // of even sizes
    Batch batch;
    const int first = int(int64_t(total) * b / num_batches);
    batch.count = int(int64_t(total) * (b + 1) / num_batches) - first;
    batch.num_blocks = (batch.count + kTileRows - 1) / kTileRows;
    for (int r = 0; r < batch.count; ++r) {
      const int token = (first + r) / heads, head = (first + r) % heads;
      float* to = batch.out[r] = out[token] + head * int64_t(partial_floats(head_dim));
      const Range visible = batch.visible[r] = visible_to(a, start, positions[token]);
      if (!is_empty(visible)) {
        batch.seen = {least(batch.seen.begin, visible.begin), most(batch.seen.end, visible.end)};
      }
      to[0] = -kInfinity;
      std::memset(to + 1, 0, size_t(1 + head_dim) * sizeof(float));
      put_query(q[token] + head * head_dim, a.scale, head_dim, r, &batch);
    }
    if (!is_empty(batch.seen)) attend(a, kv_head, start, &batch);
  }
  release_tiles();
  return true;
}

}  // namespace takt::amx
