// The product of some panels with many rows on AMX's matrix unit. It multiplies a group of 16 rows
// of x with the 16 rows of a panel at once, into 16 x 16 exact integers; what is made of those is as
// panel_product.h states, element by element.
//
// What it costs on a Xeon with AMX beside a busy sibling: 33 cycles a product, 28 a load of 16 rows,
// 24 a store, one after the other whatever their order. Tried and lost: in windows of 128 columns of
// which x shares a scale, Q4_1 weights are integers of 16 bits in one unit (83 % of SmolLM2's panels),
// so that planes of their high and low bytes meet 64 columns of x at once and only a window's sums are
// stored and scaled: 0.75 to 0.9 of the time, equal bits on all sets. But scales over 128 instead of
// 32 activations raise perplexity by 0.65 % (SmolLM2) and 0.9 % (Gemma 3), over half of what may be
// lost at all.
#pragma once
#include <algorithm>

#include "kernels/block_product.h"
#include "kernels/tile_registers.h"

namespace takt::TAKT_ISA {

// Steps along K: a group, or the half of one that has a scale of its own.
template <QuantType kType>
inline constexpr int kStepsPerGroup = panel_spec(kType).scales == Scales::kSuperHalf ? 2 : 1;

// Rows of x, equally far apart.
struct SpacedRows {
  const std::byte* first;
  size_t stride;

  TAKT_INLINE SpacedRows from(int row) const { return {first + size_t(row) * stride, stride}; }
};

// A chunk's groups of K.
struct ChunkRange {
  int64_t first;
  int num;
};

// What a chunk's groups of kTileRows rows are scaled by, those of a group side by side: a broadcast
// from a fixed distance costs one operation, from a row's own place three.
struct RowScales {
  alignas(64) float scale[kChunkGroups][kTileRows];
  alignas(64) float scaled_sum[kChunkGroups][kTileRows];

  // Of `num_rows` rows; the last is repeated for those that are missing. Reads a whole chunk's, past
  // the row's last: what is there belongs to the row, whose parts end on 64-byte borders.
  template <bool kHasMin>
  TAKT_INLINE void fill(const SpacedRows& x, int num_rows, const Q8Offsets& at, int64_t group) {
    const std::byte* row[kTileRows];
    row[0] = x.first + 4 * group;
    for (int i = 1; i < kTileRows; ++i) row[i] = row[i - 1] + (i < num_rows ? x.stride : 0);
    for (int g = 0; g < kChunkGroups; g += 4) {
      transpose(row, at.scale + 4 * g, scale + g);
      if constexpr (kHasMin) transpose(row, at.scaled_sum + 4 * g, scaled_sum + g);
    }
  }

 private:
  // Four floats of each row to four rows of sixteen.
  TAKT_INLINE static void transpose(const std::byte* const* row, size_t offset,
                                    float (*to)[kTileRows]) {
    __m512 quarter[4];  // each has every fourth row
    for (int i = 0; i < 4; ++i) {
      const auto floats = [&](int j) {
        return _mm_loadu_ps(reinterpret_cast<const float*>(row[i + 4 * j] + offset));
      };
      quarter[i] = _mm512_castps128_ps512(floats(0));
      quarter[i] = _mm512_insertf32x4(quarter[i], floats(1), 1);
      quarter[i] = _mm512_insertf32x4(quarter[i], floats(2), 2);
      quarter[i] = _mm512_insertf32x4(quarter[i], floats(3), 3);
    }
    const __m512d low_a = _mm512_castps_pd(_mm512_unpacklo_ps(quarter[0], quarter[1]));
    const __m512d low_b = _mm512_castps_pd(_mm512_unpacklo_ps(quarter[2], quarter[3]));
    const __m512d high_a = _mm512_castps_pd(_mm512_unpackhi_ps(quarter[0], quarter[1]));
    const __m512d high_b = _mm512_castps_pd(_mm512_unpackhi_ps(quarter[2], quarter[3]));
    _mm512_store_pd(to[0], _mm512_unpacklo_pd(low_a, low_b));
    _mm512_store_pd(to[1], _mm512_unpackhi_pd(low_a, low_b));
    _mm512_store_pd(to[2], _mm512_unpacklo_pd(high_a, high_b));
    _mm512_store_pd(to[3], _mm512_unpackhi_pd(high_a, high_b));
  }
};

// kTileRows rows of x or fewer, and one panel's chunk.
struct TileBlock {
  SpacedRows x;
  int num_rows;
  const Chunk* chunk;
  const float* sums;  // kPanelRows apart; read after the first chunk
  Output to;
  const std::byte* ahead;  // bytes to ask for, or null
};

using TileSums = int32_t[kTileRows * kPanelRows];

// Makes a block's integers on the matrix unit, a step at a time, each with its own result. A result
// is written after the next step's product has begun: writing waits for the product, and what comes
// after waits for the writing.
template <int kColumns>
class TileMultiplier {
 public:
  TAKT_INLINE TileMultiplier(const TileBlock& block, ChunkRange groups, TileSums* sums)
      : x_(block.x.first + kGroup * groups.first),
        x_stride_(block.x.stride),
        q_(block.chunk->q),
        num_steps_(groups.num * (int(kGroup) / kColumns)),
        sums_(sums) {}

  // Does step number `step`: each call the next.
  TAKT_INLINE void multiply(int step) {
    if (step % 2 == 0) {
      multiply_tile<kSumsA, kRowsOfXA, kWeightsA>(step);
      if (step > 0) store_tile<kSumsB>(sums_[step - 1]);
      if (step + 1 == num_steps_) store_tile<kSumsA>(sums_[step]);
    } else {
      multiply_tile<kSumsB, kRowsOfXB, kWeightsB>(step);
      store_tile<kSumsA>(sums_[step - 1]);
      if (step + 1 == num_steps_) store_tile<kSumsB>(sums_[step]);
    }
  }

 private:
  template <Tile kSums, Tile kX, Tile kWeights>
  TAKT_INLINE void multiply_tile(int step) {
    clear_tile<kSums>();
    load_tile<kX>(x_ + step * kColumns, x_stride_);
    load_tile<kWeights>(q_ + step * kColumns * kPanelRows, kTileRowBytes);
    add_tile_products<kSums, kX, kWeights>();
  }

  const std::byte* x_;
  size_t x_stride_;
  const std::byte* q_;
  int num_steps_;
  TileSums* sums_;
};

// Adds a step's integers to the sums of `num_rows` rows of x.
template <QuantType kType>
TAKT_INLINE void add_step(F32x16* acc, int num_rows, const int32_t* sums, F32x16 scale, F32x16 min,
                          const SpacedRows& sums_x, const float* scale_x, const float* scaled_sum) {
  constexpr PanelSpec kSpec = panel_spec(kType);
#pragma GCC unroll 16
  for (int i = 0; i < num_rows; ++i) {
    __m512i isum = _mm512_load_si512(sums + kPanelRows * i);
    if constexpr (kSpec.zero != 0) {
      const int16_t* sum = reinterpret_cast<const int16_t*>(sums_x.from(i).first);
      constexpr int kVectors = 8 / kStepsPerGroup<kType>;
      isum = _mm512_add_epi32(isum, zero_correction<kSpec.zero, kVectors>(sum));
    }
    acc[i] = fma(mul(scale, broadcast(scale_x[i])), to_f32(isum), acc[i]);
    if constexpr (kSpec.has_min()) acc[i] = fma(min, broadcast(scaled_sum[i]), acc[i]);
  }
}

// Adds a block's integers to its sums, while the matrix unit makes those of another (null: none):
// a step's take over a hundred cycles to arrive.
template <QuantType kType, bool kShort>
void add_block(const TileBlock& block, ChunkRange groups, const Q8Offsets& at,
               const RowScales& scales, const TileSums* sums,
               TileMultiplier<int(kGroup) / kStepsPerGroup<kType>>* next) {
  constexpr int kSteps = kStepsPerGroup<kType>;
  const int rows = kShort ? block.num_rows : kTileRows;
  const bool is_first = groups.first == 0;
  F32x16 acc[kTileRows];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    const std::byte* sum = reinterpret_cast<const std::byte*>(block.sums + kPanelRows * i);
    acc[i] = is_first ? _mm512_setzero_ps() : load_f32(sum);
  }
  for (int step = 0; step < groups.num * kSteps; ++step) {
    const int g = step / kSteps;
    const int half = step % kSteps;
    if (next != nullptr) next->multiply(step);
    if (block.ahead != nullptr && half == 0) {
      prefetch_group<kType>(block.ahead + g * panel_spec(kType).group_bytes());
    }
    const GroupScales w = block.chunk->scales<kType>(g);
    const std::byte* sums_x = block.x.first + at.sum + 4 * (groups.first + g) + 2 * half;
    add_step<kType>(acc, rows, sums[step], half == 0 ? w.scale : w.scale_high, w.min,
                    {sums_x, block.x.stride}, scales.scale[g], scales.scaled_sum[g]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) store(block.to.at + i * block.to.stride, acc[i]);
}

template <QuantType kType>
void tile_product(const PanelBlock& panels, int64_t cols, const std::byte* first_row,
                  size_t stride, int num_rows, float* tiles, const Output& out) {
  constexpr int kColumns = int(kGroup) / kStepsPerGroup<kType>;
  using Multiplier = TileMultiplier<kColumns>;
  const Q8Offsets offsets = q8_offsets(cols);
  const SpacedRows x = {first_row, stride};
  const int num_blocks = (num_rows + kTileRows - 1) / kTileRows * panels.num;
  // Of the block that is being added up, and of the next one.
  alignas(64) TileSums sums[2][kChunkGroups * kStepsPerGroup<kType>];
  RowScales scales;
  int configured_rows = 0;
  for_each_chunk<kType>(panels, cols, [&](const Chunk* chunks, int64_t first, int count,
                                          const std::byte* const* at, size_t skipped) {
    const ChunkRange groups = {first, count};
    const bool is_end = out.at != nullptr && kGroup * (first + count) == cols;
    const auto block_at = [&](int b) {
      const int i = b / panels.num * kTileRows;
      const int p = b % panels.num;
      float* sums = tiles + kPanelRows * (kPassRows * p + i);
      return TileBlock{x.from(i),
                       std::min(kTileRows, num_rows - i),
                       chunks + p,
                       sums,
                       is_end ? Output{out.at + i * out.stride + kPanelRows * p, out.stride}
                              : Output{sums, kPanelRows},
                       i == 0 ? at[p] + skipped : nullptr};
    };
    const auto configure_for = [&](const TileBlock& block) {
      if (block.num_rows == configured_rows) return;
      configured_rows = block.num_rows;
      configure_tiles(configured_rows, kColumns);
    };
    TileBlock block = block_at(0);
    configure_for(block);
    Multiplier first_multiplier(block, groups, sums[0]);
    for (int step = 0; step < count * kStepsPerGroup<kType>; ++step) first_multiplier.multiply(step);
    for (int b = 0; b < num_blocks; ++b) {
      const bool is_last = b + 1 == num_blocks;
      const TileBlock next = is_last ? block : block_at(b + 1);
      configure_for(next);
      Multiplier multiplier(next, groups, sums[(b + 1) % 2]);
      const auto add = block.num_rows < kTileRows ? &add_block<kType, true> : &add_block<kType, false>;
      if (b % panels.num == 0) {
        scales.fill<panel_spec(kType).has_min()>(block.x, block.num_rows, offsets, first);
      }
      add(block, groups, offsets, scales, sums[b % 2], is_last ? nullptr : &multiplier);
      block = next;
    }
  });
  release_tiles();
}

}  // namespace takt::TAKT_ISA
