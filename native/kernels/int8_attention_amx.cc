// Attention of many rows over one split of a cache of int8 on AMX's matrix unit. What is computed
// is stated in int8_attention_isa.cc.
//
// The unit multiplies signed bytes with unsigned ones, 64 to a register's row: digits of a query
// with 64 elements of the head for 16 positions, then digits of the weights with 64 positions for
// 16 elements of the head. K is read in place; of V, whose blocks lie apart, the rows that a register
// takes are put together first. A position that a row does not see has weight 0.
#include <cstdint>
#include <cstring>

#include "kernels/attention_blocks.h"
#include "kernels/attention_kernels.h"
#include "kernels/int8_rows.h"

namespace takt::amx {
namespace {

// The first digits of so many rows fill half of a register, their second ones the other half.
constexpr int kBlockRows = kTileRows / 2;
constexpr int kMaxBatch = kMaxBlocks * kBlockRows;
// Fewer rows than this are sooner done without.
constexpr int kMinRows = 9;
constexpr int kSplitTiles = int(kSplit / kTile);
constexpr int kTilesAtOnce = kTileRowBytes / int(kTile);  // whose positions fill a register's row
constexpr int kColumnRows = int(kTile) / 4;               // of a register's, that a tile of V fills
// From one row of sums, or of weights, to the next: were it a power of two, 16 rows' lines would
// meet in a few sets of the first-level cache.
constexpr int kSumStride = int(kSplit) + 16;
constexpr int kWeightStride = int(kSplit) + 64;

// The tiles of the split that rows of a call see.
struct SeenTiles {
  const uint8_t* key[kSplitTiles];
  SplitScales scales;
  alignas(64) uint8_t value[kSplit * kMaxHeadDim];  // [split / 64][head_dim / 16][16][64]
};

struct Row {
  float* out;
  Range visible;
  RowFactor query;
  RowFactor weights;
};

struct Batch {
  int count = 0;
  Range seen = {int(kSplit), 0};  // by any row
  int first;                      // tiles that some row sees
  int last;
  Row row[kMaxBatch];
  alignas(64) uint8_t q[2 * kMaxBatch * kMaxHeadDim];  // [block, head_dim / piece, 16, piece]
  alignas(64) uint8_t weight[2 * kMaxBatch * kWeightStride];
  // Of scores, which a row's first digits give their place to; then of V [2 kMaxBatch, head_dim].
  alignas(64) int32_t sums[2 * kMaxBatch * kSumStride];
};

// Where a row's first digits are among all rows of digits; its second ones are kBlockRows behind.
int digit_row(int row) { return row / kBlockRows * kTileRows + row % kBlockRows; }

float* scores_of(Batch* batch, int row) {
  return reinterpret_cast<float*>(batch->sums + digit_row(row) * kSumStride);
}

// The head's elements that a register's row holds.
int64_t piece_of(int64_t head_dim) {
  return head_dim % kTileRowBytes == 0 ? kTileRowBytes : kTileRowBytes / 2;
}

template <int kBlocks>
void score_all(const SeenTiles& seen, int64_t head_dim, Batch* batch) {
  const int64_t piece = piece_of(head_dim);
  configure_blocks(int(piece), int(piece / 4));
  for (int t = batch->first; t < batch->last; ++t) {
    clear_sums<kBlocks>();
    for (int64_t d = 0; d < head_dim; d += piece) {
      add_products<kBlocks, ByteProducts>(batch->q + d * kTileRows, size_t(piece),
                                          size_t(kTileRows * head_dim), seen.key[t] + d * kTile,
                                          kTileRowBytes);
    }
    store_sums<kBlocks>(batch->sums + t * kTile, kSumStride);
  }
}

template <int kBlocks>
void weigh_all(const SeenTiles& seen, int64_t head_dim, Batch* batch) {
  configure_blocks(kTileRowBytes, kTileRows);
  for (int64_t d = 0; d < head_dim; d += kTile) {
    clear_sums<kBlocks>();
    for (int t = batch->first / kTilesAtOnce * kTilesAtOnce; t < batch->last; t += kTilesAtOnce) {
      const uint8_t* columns = seen.value + t * kTile * head_dim + d * kTileRowBytes;
      add_products<kBlocks, ByteProducts>(batch->weight + t * kTile, kWeightStride,
                                          kTileRows * kWeightStride, columns, kTileRowBytes);
    }
    store_sums<kBlocks>(batch->sums + d, head_dim);
  }
}

// Turns each row's sums into scores, and those into weights. All rows' greatest scores first: the
// weights of one need not wait for its own then.
void softmax_all(const AttentionArgs& a, const SplitScales& scales, Batch* batch) {
  for (int r = 0; r < batch->count; ++r) {
    Row& row = batch->row[r];
    row.out[0] = -kInfinity;
    if (is_empty(row.visible)) continue;
    float* score = scores_of(batch, r);
    const int32_t* first = batch->sums + digit_row(r) * kSumStride;
    const int32_t* second = first + kBlockRows * kSumStride;
    const RowFactor query = row.query;
    const auto score_at = [&](int p) __attribute__((always_inline)) {
      const Vec16 sum = floats_from_sums(_mm512_loadu_si512(first + p),
                                         _mm512_loadu_si512(second + p), query.less);
      return sum * load(scales.key + p) * set1(query.factor);
    };
    row.out[0] = greatest_score(a, row.visible, score, score_at);
  }
  const Range positions = weighed_positions(batch->first, batch->last);
  LargestScale largest;
  for (int r = 0; r < batch->count; ++r) {
    Row& row = batch->row[r];
    uint8_t* weight = batch->weight + digit_row(r) * kWeightStride;
    find_largest(scales.value, row.visible, &largest);
    row.weights = quantise_weights(scales.value, largest, positions.begin, positions.end,
                                   row.out[0], scores_of(batch, r), weight,
                                   weight + kBlockRows * kWeightStride, &row.out[1]);
  }
}

template <int kBlocks>
void attend(const AttentionArgs& a, const SeenTiles& seen, Batch* batch) {
  const int64_t head_dim = a.kv.head_dim;
  batch->first = batch->seen.begin / int(kTile);
  batch->last = (batch->seen.end + int(kTile) - 1) / int(kTile);
  score_all<kBlocks>(seen, head_dim, batch);
  softmax_all(a, seen.scales, batch);
  weigh_all<kBlocks>(seen, head_dim, batch);
  for (int r = 0; r < batch->count; ++r) {
    const Row& row = batch->row[r];
    const int32_t* first = batch->sums + digit_row(r) * head_dim;
    const int32_t* second = first + kBlockRows * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const Vec16 sum = floats_from_sums(_mm512_loadu_si512(first + d),
                                         _mm512_loadu_si512(second + d), row.weights.less);
      store(row.out + 2 + d, sum * set1(row.weights.factor));
    }
  }
}

void find_tiles(const KVTiles<Int8Tile>& tiles, int64_t start, int64_t head_dim, Range seen,
                SeenTiles* found) {
  const int first = seen.begin / int(kTile), last = (seen.end + int(kTile) - 1) / int(kTile);
  load_scales(tiles, start, first, last, &found->scales);
  for (int t = first; t < last; ++t) {
    found->key[t] = tiles.key(start + t * kTile, nullptr);
    const uint8_t* from = tiles.value(start + t * kTile, nullptr);
    uint8_t* to = found->value + t / kTilesAtOnce * kTilesAtOnce * kTile * head_dim +
                  t % kTilesAtOnce * kColumnRows * kTileRowBytes;
    for (int four = 0; four < kColumnRows; ++four, to += kTileRowBytes) {
      for (int64_t d = 0; d < head_dim; d += kTile, from += kTileRowBytes) {
        _mm512_store_si512(to + d * kTileRowBytes, _mm512_loadu_si512(from));
      }
    }
  }
}

void add_row(const float* query, float scale, int64_t head_dim, Range visible, float* out,
             Batch* batch) {
  const int r = batch->count++;
  Row& row = batch->row[r];
  row.out = out;
  row.visible = visible;
  if (!is_empty(visible)) {
    batch->seen = {least(batch->seen.begin, visible.begin), most(batch->seen.end, visible.end)};
  }
  alignas(64) uint8_t first[kMaxHeadDim], second[kMaxHeadDim];
  row.query = quantise_query(query, head_dim, scale, first, second);
  const int64_t piece = piece_of(head_dim);
  uint8_t* to = batch->q + r / kBlockRows * kTileRows * head_dim + r % kBlockRows * piece;
  constexpr int64_t kHalf = kTileRowBytes / 2;
  for (int64_t d = 0; d < head_dim; d += kHalf) {
    uint8_t* half = to + d / piece * kTileRows * piece + d % piece;
    std::memcpy(half, first + d, kHalf);
    std::memcpy(half + kBlockRows * piece, second + d, kHalf);
  }
}

}  // namespace

bool int8_split_of_many(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                        const int32_t* positions, const float* const* q, float* const* out) {
  const int64_t start = split * kSplit, head_dim = a.kv.head_dim;
  const int heads = int(a.num_heads_per_kv), total = m * heads;
  const Range seen = seen_by(a, start, m, positions);
  if (total < kMinRows || is_empty(seen) || a.kv.block_size % kTile != 0 ||
      head_dim % (kTileRowBytes / 2) != 0 || kReadThroughCopy) {
    return false;
  }
  const KVTiles<Int8Tile> tiles(a, kv_head, start + seen.begin, start + seen.end);
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
    if (is_empty(batch.seen)) batch.seen = {seen.begin, seen.begin + 1};  // nothing of it counts
    static_assert(kMinRows > kBlockRows);  // so that no batch of even sizes is one block
    const auto attend_blocks = batch.count <= 2 * kBlockRows ? &attend<2> : &attend<3>;
    attend_blocks(a, seen_tiles, &batch);
  }
  release_tiles();
  return true;
}

}  // namespace takt::amx
