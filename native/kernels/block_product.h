// The product of some panels with many rows, written once for all instruction sets. Some groups of
// each panel are unpacked into the first-level cache; then each few rows of x pass all of those
// panels before the next rows come, so that x is read from farther away once for all panels.
// Element by element it does what panel_product.h states.
#pragma once
#include <algorithm>

#include "kernels/linear_kernels.h"
#include "kernels/panel_product.h"

namespace takt::TAKT_ISA {

// Unpacked groups of a panel, as many as a block of the K types has (panel.h).
inline constexpr int kChunkGroups = 8;

struct Chunk {
  alignas(64) std::byte q[kChunkGroups * 8 * kVectorBytes];
  alignas(64) float scale[kChunkGroups * kPanelRows];
  alignas(64) float scale_high[kChunkGroups * kPanelRows];
  alignas(64) float min[kChunkGroups * kPanelRows];

  template <QuantType kType>
  TAKT_INLINE void fill(GroupStream<kType>& stream, int num_groups) {
    constexpr PanelSpec kSpec = panel_spec(kType);
    for (int g = 0; g < num_groups; ++g) {
      Bytes64 vectors[8];
      const GroupScales w = stream.next(g, vectors);
      for (int v = 0; v < 8; ++v) store_bytes(q + (8 * g + v) * kVectorBytes, vectors[v]);
      store(scale + kPanelRows * g, w.scale);
      if constexpr (kSpec.scales == Scales::kSuperHalf) {
        store(scale_high + kPanelRows * g, w.scale_high);
      }
      if constexpr (kSpec.has_min()) store(min + kPanelRows * g, w.min);
    }
  }

  template <QuantType kType>
  TAKT_INLINE GroupScales scales(int g) const {
    constexpr PanelSpec kSpec = panel_spec(kType);
    const auto load = [g](const float* lanes) {
      return load_f32(reinterpret_cast<const std::byte*>(lanes + kPanelRows * g));
    };
    GroupScales out{};
    out.scale = load(scale);
    if constexpr (kSpec.scales == Scales::kSuperHalf) out.scale_high = load(scale_high);
    if constexpr (kSpec.has_min()) out.min = load(min);
    return out;
  }
};

struct PlainDot {
  template <int kBits, int kZero, int kVectors>
  TAKT_INLINE static I32x16 of(const Bytes64* q, const int8_t* x, const int16_t* sum) {
    return dot<kBits, kZero, kVectors>(q, x, sum);
  }
};

// Adds a chunk's groups to the sums of kRows rows in `tile`. While the first rows pass, the groups
// at `ahead` are asked for; null: none.
template <QuantType kType, int kRows>
TAKT_INLINE void add_chunk_rows(const Chunk& chunk, int64_t first_group, int num_groups,
                                const Q8Offsets& at, const std::byte* const* rows, float* tile,
                                const std::byte* ahead) {
  F32x16 acc[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    acc[i] = load_f32(reinterpret_cast<const std::byte*>(tile + kPanelRows * i));
  }
  for (int g = 0; g < num_groups; ++g) {
    if (ahead != nullptr) prefetch_group<kType>(ahead + g * panel_spec(kType).group_bytes());
    Bytes64 q[8];
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) q[v] = load_bytes(chunk.q + (8 * g + v) * kVectorBytes);
    const GroupScales w = chunk.scales<kType>(g);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      acc[i] = add_group<kType, PlainDot>(acc[i], q, w, rows[i], at, first_group + g);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) store(tile + kPanelRows * i, acc[i]);
}

// `num_rows` rows, at most kRows: those, or blocks of half as many, and so on.
template <QuantType kType, int kRows>
TAKT_INLINE void add_chunk(const Chunk& chunk, int64_t first_group, int num_groups,
                           const Q8Offsets& at, const std::byte* const* rows, int num_rows,
                           float* tile, const std::byte* ahead) {
  if (num_rows == kRows) {
    add_chunk_rows<kType, kRows>(chunk, first_group, num_groups, at, rows, tile, ahead);
  } else if constexpr (kRows > 1) {
    constexpr int kHalf = kRows / 2;
    if (num_rows >= kHalf) {
      add_chunk_rows<kType, kHalf>(chunk, first_group, num_groups, at, rows, tile, ahead);
      rows += kHalf;
      num_rows -= kHalf;
      tile += kPanelRows * kHalf;
      ahead = nullptr;
    }
    if (num_rows > 0) {
      add_chunk<kType, kHalf>(chunk, first_group, num_groups, at, rows, num_rows, tile, ahead);
    }
  }
}

// Calls add(chunk, first_group, num_groups, panel, ahead) for the chunks of each panel along K, all
// panels' turn before the next along K; `ahead` is where that panel's next groups lie, or those of
// the panel that comes in its place.
template <QuantType kType, class Add>
TAKT_INLINE void for_each_chunk(const PanelBlock& panels, int64_t cols, Add add) {
  const int64_t num_groups = cols / kGroup;
  Chunk chunks[kBlockPanels];
  const std::byte* at[kBlockPanels];
  for (int p = 0; p < panels.num; ++p) at[p] = panels.first + size_t(p) * panels.panel_bytes;
  for (int64_t first = 0; first < num_groups; first += kChunkGroups) {
    const int count = int(std::min<int64_t>(kChunkGroups, num_groups - first));
    for (int p = 0; p < panels.num; ++p) {
      // Blocks of the K types begin where chunks do.
      GroupStream<kType> stream(at[p]);
      chunks[p].fill(stream, count);
      at[p] = stream.at();
    }
    const bool is_last = first + count == num_groups;
    const size_t skipped = is_last ? size_t(panels.num - 1) * panels.panel_bytes : 0;
    add(chunks, first, count, at, skipped);
  }
}

template <QuantType kType, int kMaxRows>
void block_product(const PanelBlock& panels, int64_t cols, const std::byte* const* rows,
                   int num_rows, float* tiles) {
  const Q8Offsets offsets = q8_offsets(cols);
  for (int p = 0; p < panels.num; ++p) {
    std::fill_n(tiles + kPanelRows * kPassRows * p, kPanelRows * num_rows, 0.0f);
  }
  for_each_chunk<kType>(panels, cols, [&](const Chunk* chunks, int64_t first, int count,
                                          const std::byte* const* at, size_t skipped) {
    for (int i = 0; i < num_rows; i += kMaxRows) {
      for (int p = 0; p < panels.num; ++p) {
        add_chunk<kType, kMaxRows>(chunks[p], first, count, offsets, rows + i,
                                   std::min(kMaxRows, num_rows - i),
                                   tiles + kPanelRows * (kPassRows * p + i),
                                   i == 0 ? at[p] + skipped : nullptr);
      }
    }
  });
}

}  // namespace takt::TAKT_ISA
