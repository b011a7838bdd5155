// Values that instructions exchange, and the tiles they are computed in.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace takt {

// Rows x columns of an instruction's outputs, cut into tiles. Tiles are numbered down the rows of
// one block of columns, then on to the next block: neighbours share weights.
struct TileGrid {
  int32_t num_rows = 0;
  int32_t rows_per_tile = 1;
  int64_t num_cols = 0;
  int64_t cols_per_tile = 1;

  int32_t row_tiles() const { return (num_rows + rows_per_tile - 1) / rows_per_tile; }
  int32_t col_tiles() const { return int32_t((num_cols + cols_per_tile - 1) / cols_per_tile); }
  int32_t num_tiles() const { return row_tiles() * col_tiles(); }
};

struct TileRange {
  int32_t row0, row1;
  int64_t col0, col1;
  int32_t num_rows() const { return row1 - row0; }
  int64_t num_cols() const { return col1 - col0; }
};

inline TileRange tile_range(const TileGrid& g, int tile) {
  const int32_t row0 = tile % g.row_tiles() * g.rows_per_tile;
  const int64_t col0 = tile / g.row_tiles() * g.cols_per_tile;
  return {row0, std::min(row0 + g.rows_per_tile, g.num_rows), col0,
          std::min(col0 + g.cols_per_tile, g.num_cols)};
}

// A step's places are laid out for few rows (with room to spare between reuses, so that a thread
// that fell behind seldom blocks others) or for the most rows there can be.
enum ArenaLayout : int { kFewRows, kManyRows, kNumLayouts };

// A piece of the arena that one instruction writes.
struct Place {
  size_t bytes[kNumLayouts];  // 0: not needed in this layout
  size_t at[kNumLayouts];     // offsets in the arena, set when the program is finished
  int first;                  // the instruction that writes it
  int last;                   // the last one that touches it
};

inline constexpr int kNoPlace = -1;
inline constexpr int kNoValue = -1;

// Rows of `width` elements, kept as float32, as q8 or bf16 rows (kernels/activation.h), or several:
// whatever the instructions that read it need.
struct Value {
  int64_t width;
  int64_t max_rows[kNumLayouts];
  int producer;  // instruction
  bool needs_f32 = false;
  bool needs_quantised = false;  // the form that quantised weights take: StepInput::num_q8_tokens
  bool needs_bf16 = false;       // of all rows
  int f32_place = kNoPlace;
  int q8_place = kNoPlace;
  int bf16_place = kNoPlace;
  int last_use;  // instruction
};

}  // namespace takt
