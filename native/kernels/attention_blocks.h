// Blocks of 16 rows, up to three of which share each load of columns into a register of AMX's unit.
//
// Few registers are in use: at times (it seems while the core's other thread uses the unit too)
// hardly any are left to rename them. A product with its loads then took 30 cycles with four
// registers in use and 70 with all eight; else 16 with either.
#pragma once
#include <cstddef>

#include "kernels/tile_registers.h"

namespace takt::TAKT_ISA {

inline constexpr int kMaxBlocks = 3;
inline constexpr Tile kSum0 = Tile(0), kSum1 = Tile(1), kSum2 = Tile(2);
inline constexpr Tile kRows = Tile(3), kColumns = Tile(4);

// What is multiplied: pairs of bf16, or signed bytes of rows and unsigned ones of columns.
struct Bf16Products {
  template <Tile kSum>
  TAKT_INLINE static void add() {
    add_bf16_tile_products<kSum, kRows, kColumns>();
  }
};
struct ByteProducts {
  template <Tile kSum>
  TAKT_INLINE static void add() {
    add_tile_products<kSum, kRows, kColumns>();
  }
};

// For rows of so many bytes, and so many columns' rows.
inline void configure_blocks(int row_bytes, int column_rows) {
  TileConfig config;
  for (const Tile tile : {kSum0, kSum1, kSum2}) config.set(tile, kTileRows, kTileRowBytes);
  config.set(kRows, kTileRows, row_bytes);
  config.set(kColumns, column_rows, kTileRowBytes);
  config.load();
}

template <int kBlocks>
TAKT_INLINE void clear_sums() {
  clear_tile<kSum0>();
  if constexpr (kBlocks > 1) clear_tile<kSum1>();
  if constexpr (kBlocks > 2) clear_tile<kSum2>();
}

// Adds to each block's sums the products of its rows, `block_bytes` from those of the block before,
// with the columns.
template <int kBlocks, class Products>
TAKT_INLINE void add_products(const void* rows, size_t row_bytes, size_t block_bytes,
                              const void* columns, size_t column_bytes) {
  const auto* from = static_cast<const std::byte*>(rows);
  load_tile<kColumns>(columns, column_bytes);
  load_tile<kRows>(from, row_bytes);
  Products::template add<kSum0>();
  if constexpr (kBlocks > 1) {
    load_tile<kRows>(from + block_bytes, row_bytes);
    Products::template add<kSum1>();
  }
  if constexpr (kBlocks > 2) {
    load_tile<kRows>(from + 2 * block_bytes, row_bytes);
    Products::template add<kSum2>();
  }
}

// Rows of 16 sums, `stride` sums from one to the next.
template <int kBlocks, class Sum>
TAKT_INLINE void store_sums(Sum* to, int64_t stride) {
  static_assert(sizeof(Sum) == 4);
  const size_t bytes = size_t(stride) * sizeof(Sum);
  store_tile<kSum0>(to, bytes);
  if constexpr (kBlocks > 1) store_tile<kSum1>(to + kTileRows * stride, bytes);
  if constexpr (kBlocks > 2) store_tile<kSum2>(to + 2 * kTileRows * stride, bytes);
}

}  // namespace takt::TAKT_ISA
