// How work is cut into tiles. Results never depend on it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "program/value.h"

namespace takt {

// Whole rows, a few to a tile.
inline constexpr int32_t kMaxRowsPerRowTile = 16;
TileGrid row_grid(int32_t num_rows, int64_t width, int num_threads);

// The product of `num_rows` rows with a weight of `num_cols` output features and `k` inputs; tiles
// begin at multiples of `align` columns (16 or 32).
TileGrid product_grid(int32_t num_rows, int64_t num_cols, int64_t k, int64_t align,
                      int num_threads);

// The most tiles that `grid_of(rows)` gives for 1 to max_rows rows.
template <class GridOf>
int32_t most_tiles(int64_t max_rows, GridOf grid_of) {
  int32_t most = 0;
  for (int32_t rows = 1; rows <= int32_t(max_rows); ++rows) {
    most = std::max(most, grid_of(rows).num_tiles());
  }
  return most;
}

// Rows of a product's tile, at most: with q8 rows of 2,000 elements a block of them fits a 128 KiB
// half of L2 while panels of weights stream past.
inline constexpr int32_t kMaxProductRows = 256;

}  // namespace takt
