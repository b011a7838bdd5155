// Where the rows of a value lie in a step: in the value's place, or in the staging of whoever
// executed a tile again.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "program/instruction.h"
#include "program/step_context.h"
#include "program/value.h"

namespace takt {

// Bytes of a staged tile that holds `outputs`, all cut by `grid`.
size_t staged_value_bytes(const ProgramPlan& plan, const std::vector<int>& outputs,
                          const TileGrid& grid);

// Reads rows of a value that an earlier instruction has completed.
class RowSource {
 public:
  RowSource(const StepContext& step, int value);

  // Columns [col0, col1) of a row, contiguous: where they lie, or gathered into `gathered`
  // (col1 - col0 floats) if they are scattered over tiles in different memory.
  const float* f32(int row, int64_t col0, int64_t col1, float* gathered) const;
  const float* f32(int row, float* gathered) const { return f32(row, 0, width_, gathered); }

  // A whole q8 row; `gathered` has q8_row_bytes(width).
  Q8Row q8(int row, std::byte* gathered) const;

  // A whole bf16 row; `gathered` has bf16_row_elements(width).
  const uint16_t* bf16(int row, uint16_t* gathered) const;

 private:
  bool all_in_place(int row_tile, int col_tile0, int col_tile1) const;
  const std::byte* result(int row_tile, int col_tile) const;

  const StepContext& step_;
  const TileGrid& grid_;
  int producer_;
  int64_t width_;
  const std::byte* f32_place_ = nullptr;
  const std::byte* q8_place_ = nullptr;
  const uint16_t* bf16_place_ = nullptr;
  size_t f32_staged_ = 0;  // offsets of the forms in a staged tile
  size_t q8_staged_ = 0;
  size_t bf16_staged_ = 0;
};

// Writes rows of one output of a tile, in the forms that its readers need.
class RowTarget {
 public:
  // `scratch` gives room for what has no place of its own: scratch_bytes.
  RowTarget(TileRun& tile, int value, const TileRange& range);

  // Floats of a row of the tile, `f32_stride` apart; to be filled, then `finish` called.
  float* f32(int row) const { return f32_ + (row - range_.row0) * f32_stride_; }
  int64_t f32_stride() const { return f32_stride_; }

  // Makes the other forms of a row whose floats are written.
  void finish(int row) const;

  // Scratch for a tile of `rows` rows and `cols` columns.
  static size_t scratch_bytes(int64_t rows, int64_t cols);

 private:
  void finish_q8(int row) const;

  TileRange range_;
  int64_t width_;
  int num_q8_;          // rows before it have a q8 form
  int first_bf16_ = 0;  // rows from it on have a bf16 form
  float* f32_;
  int64_t f32_stride_;
  uint16_t* bf16_ = nullptr;    // row range_.row0, column range_.col0
  int64_t bf16_stride_ = 0;
  std::byte* q8_ = nullptr;     // row range_.row0
  size_t q8_stride_ = 0;        // bytes from row to row
  std::byte* q8_part_ = nullptr;  // where a part of a row is quantised before it joins its row
};

}  // namespace takt
