#include "program/tiling.h"

#include <algorithm>

namespace takt {
namespace {

// Tiles for each thread: enough that the last ones end at about the same time.
constexpr int64_t kTilesPerThread = 4;
// Elements of weights in a tile: 150 KB at 4.5 bits, some 20 us of streaming. A tile must be short,
// since the last one of each instruction is waited for and a stolen one is done again.
constexpr int64_t kMaxWeightElements = int64_t{1} << 18;
// Below this the tile's own cost (a claim, a publication) shows.
constexpr int64_t kMinWeightElements = int64_t{1} << 13;
// With many rows the tile is bound by arithmetic; weights are reused from L2 over the row blocks.
constexpr int64_t kMaxColsOfManyRows = 128;
constexpr int32_t kFewProductRows = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace

TileGrid row_grid(int32_t num_rows, int64_t width, int num_threads) {
  const int64_t rows = ceil_div(num_rows, kTilesPerThread * num_threads);
  return {num_rows, int32_t(std::clamp<int64_t>(rows, 1, kMaxRowsPerRowTile)), width, width};
}

TileGrid product_grid(int32_t num_rows, int64_t num_cols, int64_t k, int64_t align,
                      int num_threads) {
  const int64_t row_tiles = std::max<int64_t>(1, ceil_div(num_rows, kMaxProductRows));
  const int64_t rows = std::max<int64_t>(1, ceil_div(num_rows, row_tiles));
  const int64_t balanced = ceil_div(num_cols * row_tiles, kTilesPerThread * num_threads);
  int64_t most = kMaxWeightElements / k;
  if (num_rows > kFewProductRows) most = std::min(most, kMaxColsOfManyRows);
  const int64_t cols = std::max(std::min(balanced, most), kMinWeightElements / k);
  const int64_t whole = round_up(std::max<int64_t>(cols, 1), align);
  return {num_rows, int32_t(rows), num_cols, std::min(whole, round_up(num_cols, align))};
}

}  // namespace takt
