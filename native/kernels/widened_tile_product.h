// The product of some panels of quantised weights with bf16 rows on AMX's matrix unit, as
// widened_product.h states it. Two panels at a time: for the first 16 rows of x a group's weights are
// widened into the first-level cache while the unit multiplies the group before; the others find all of
// them there.
//
// Beside a busy sibling the unit keeps few registers in flight: with all eight in use a product and its
// share of loads took 28 ns on a Xeon, with four in use 13; alone 6 either way.
#pragma once
#include <algorithm>

#include "kernels/panel_product.h"
#include "kernels/tile_registers.h"

namespace takt::TAKT_ISA {

// Groups along K whose weights are widened before their sums leave the registers.
inline constexpr int kWidenedGroups = 64;
inline constexpr int kPanelsAtOnce = 2;
// Sixteen rows of x are more streams than the hardware's prefetchers follow.
inline constexpr int kGroupsAhead = 3;
inline constexpr size_t kTileBytes = size_t(kTileRows) * kTileRowBytes;

// Of each group a register's content: row p holds columns 2 p and 2 p + 1 of the panel's 16 rows.
using WidenedPanel = std::byte[kWidenedGroups][kTileBytes];

// What q of 16 rows become in f32: fma(scale, q, base). `base` is the minimum, or what is subtracted
// from q times the scale, which is exact: no type has both.
struct WidenScale {
  F32x16 scale;
  F32x16 base;

  template <QuantType kType>
  TAKT_INLINE static WidenScale of(F32x16 scale, F32x16 min) {
    constexpr PanelSpec kSpec = panel_spec(kType);
    static_assert(!kSpec.has_min() || kSpec.zero == 0);
    return {scale, kSpec.has_min() ? min : mul(scale, broadcast(float(-kSpec.zero)))};
  }

  // Of the low `kMask` bits of each lane, moved down by kShift. A permutation looks at four bits of
  // a lane alone: it takes the place of a mask and a conversion.
  template <int kShift, int kMask>
  TAKT_INLINE F32x16 widen(__m512i lanes) const {
    const __m512i moved = kShift == 0 ? lanes : _mm512_srli_epi32(lanes, kShift);
    if constexpr (kMask == 15) {
      const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      return fma(scale, _mm512_permutexvar_ps(moved, numbers), base);
    } else {
      const __m512i q = _mm512_and_si512(moved, _mm512_set1_epi32(kMask));
      return fma(scale, _mm512_cvtepi32_ps(q), base);
    }
  }
};

// Two columns of 16 rows, rounded, side by side.
TAKT_INLINE void store_pairs(std::byte* to, F32x16 even, F32x16 odd) {
  const __m512i side_by_side = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,
                                                9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                                17, 1, 16, 0);
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  _mm512_store_si512(to, _mm512_permutexvar_epi16(side_by_side, halves));
}

// The four columns whose q begin at bit kBit of each byte of `lanes`: two rows of a register.
template <int kBit, int kMask>
TAKT_INLINE void widen_columns(__m512i lanes, const WidenScale& s, std::byte* to) {
  store_pairs(to, s.widen<kBit, kMask>(lanes), s.widen<kBit + 8, kMask>(lanes));
  store_pairs(to + kTileRowBytes, s.widen<kBit + 16, kMask>(lanes),
              s.widen<kBit + 24, kMask>(lanes));
}

// Widens the panel's next group.
template <QuantType kType>
TAKT_INLINE void widen_group(GroupStream<kType>& stream, int64_t group, std::byte* to) {
  constexpr PanelSpec kSpec = panel_spec(kType);
  constexpr int kFourColumns = 2 * kTileRowBytes;
  const auto scales_of = [](const GroupScales& w, WidenScale (&out)[2]) {
    out[0] = WidenScale::of<kType>(w.scale, w.min);
    out[1] = kSpec.scales == Scales::kSuperHalf ? WidenScale::of<kType>(w.scale_high, w.min)
                                                : out[0];
  };
  WidenScale scales[2];
  if constexpr (kSpec.bits == 4) {
    const std::byte* packed;
    scales_of(stream.next_packed(group, &packed), scales);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m512i pairs = load_bytes(packed + kVectorBytes * v);
      widen_columns<0, 15>(pairs, scales[0], to + kFourColumns * v);
      widen_columns<4, 15>(pairs, scales[1], to + kFourColumns * (v + 4));
    }
  } else {
    Bytes64 q[8];
    scales_of(stream.next(group, q), scales);
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) widen_columns<0, 255>(q[v], scales[v / 4], to + kFourColumns * v);
  }
}

inline constexpr Tile kSums0 = Tile(0), kSums1 = Tile(1), kRowsTile = Tile(2), kPanelTile = Tile(3);

TAKT_INLINE void configure_widened(int num_rows) {
  TileConfig config;
  for (const Tile tile : {kSums0, kSums1, kRowsTile}) config.set(tile, num_rows, kTileRowBytes);
  config.set(kPanelTile, kTileRows, kTileRowBytes);
  config.load();
}

// 16 rows of x or fewer, and where their sums with either panel go, or have got to.
struct WidenedRows {
  const std::byte* x;
  size_t stride;
  Output to[kPanelsAtOnce];
  int num;
};

// One or two panels with all rows of x.
template <QuantType kType, int kPanels>
class WidenedProduct {
 public:
  TAKT_INLINE WidenedProduct(const std::byte* first_panel, size_t panel_bytes, int64_t cols)
      : streams_{GroupStream<kType>(first_panel),
                 GroupStream<kType>(first_panel + (kPanels - 1) * panel_bytes)},
        num_groups_(cols / kGroup) {}

  // `rows_at(i)` gives those that begin with row i.
  template <class RowsAt>
  TAKT_INLINE void run(int num_rows, RowsAt rows_at) {
    int configured = 0;
    kept_ = num_rows > kTileRows ? kWidenedGroups - 1 : 1;
    for (int64_t first = 0; first < num_groups_; first += kWidenedGroups) {
      const int count = int(std::min<int64_t>(kWidenedGroups, num_groups_ - first));
      for (int i = 0; i < num_rows; i += kTileRows) {
        const WidenedRows rows = rows_at(i);
        if (rows.num != configured) configure_widened(configured = rows.num);
        piece(rows, first, count, i == 0);
      }
    }
  }

 private:
  TAKT_INLINE void widen(int64_t first, int g) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      prefetch_group<kType>(streams_[p].at() + kPanels * kPrefetchBytes / 2);
      widen_group<kType>(streams_[p], first + g, widened_[p][g & kept_]);
    }
  }

  TAKT_INLINE void multiply(const WidenedRows& rows, int64_t first, int g) {
    const std::byte* ahead = rows.x + (first + g + kGroupsAhead) * kTileRowBytes;
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) __builtin_prefetch(ahead + i * rows.stride);
    load_tile<kRowsTile>(rows.x + (first + g) * kTileRowBytes, rows.stride);
    load_tile<kPanelTile>(widened_[0][g & kept_], kTileRowBytes);
    add_bf16_tile_products<kSums0, kRowsTile, kPanelTile>();
    if constexpr (kPanels > 1) {
      load_tile<kPanelTile>(widened_[1][g & kept_], kTileRowBytes);
      add_bf16_tile_products<kSums1, kRowsTile, kPanelTile>();
    }
  }

  // Groups [first, first + count) of K; with `is_new` their weights are widened on the way.
  TAKT_INLINE void piece(const WidenedRows& rows, int64_t first, int count, bool is_new) {
    const auto stride = [&](int p) { return size_t(rows.to[p].stride) * sizeof(float); };
    if (first == 0) {
      clear_tile<kSums0>();
      if constexpr (kPanels > 1) clear_tile<kSums1>();
    } else {
      load_tile<kSums0>(rows.to[0].at, stride(0));
      if constexpr (kPanels > 1) load_tile<kSums1>(rows.to[1].at, stride(1));
    }
    if (is_new) {
      widen(first, 0);
      for (int g = 0; g + 1 < count; ++g) {
        widen(first, g + 1);
        multiply(rows, first, g);
      }
      multiply(rows, first, count - 1);
    } else {
      for (int g = 0; g < count; ++g) multiply(rows, first, g);
    }
    store_tile<kSums0>(rows.to[0].at, stride(0));
    if constexpr (kPanels > 1) store_tile<kSums1>(rows.to[1].at, stride(1));
  }

  GroupStream<kType> streams_[kPanelsAtOnce];
  int64_t num_groups_;
  int kept_;  // group g's weights are at g & kept_: all stay while others come for them
  alignas(64) WidenedPanel widened_[kPanelsAtOnce];
};

template <QuantType kType>
void widened_tile_product(const PanelBlock& panels, int64_t cols, const std::byte* first_row,
                          size_t stride, int num_rows, float* tiles, const Output& out) {
  const auto place = [&](int panel, int row) {
    return out.at != nullptr
               ? Output{out.at + row * out.stride + kPanelRows * panel, out.stride}
               : Output{tiles + kPanelRows * (kPassRows * panel + row), kPanelRows};
  };
  for (int p = 0; p < panels.num; p += kPanelsAtOnce) {
    const std::byte* panel = panels.first + size_t(p) * panels.panel_bytes;
    const auto rows_at = [&](int i) {
      return WidenedRows{first_row + size_t(i) * stride, stride,
                         {place(p, i), place(std::min(p + 1, panels.num - 1), i)},
                         std::min(kTileRows, num_rows - i)};
    };
    if (p + 1 < panels.num) {
      WidenedProduct<kType, 2>(panel, panels.panel_bytes, cols).run(num_rows, rows_at);
    } else {
      WidenedProduct<kType, 1>(panel, panels.panel_bytes, cols).run(num_rows, rows_at);
    }
  }
  release_tiles();
}

}  // namespace takt::TAKT_ISA
