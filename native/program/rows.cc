#include "program/rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/linear.h"
#include "kernels/round_bf16.h"

namespace takt {
namespace {

// Where a staged tile's forms of one output lie.
struct StagedForms {
  size_t q8_at;
  size_t bf16_at;
  size_t end;
};

size_t bf16_bytes(int64_t rows, int64_t width) {
  return size_t(rows * bf16_row_elements(width)) * sizeof(uint16_t);
}

StagedForms staged_forms(const Value& value, const TileGrid& grid, size_t begin) {
  size_t at = begin;
  if (value.needs_f32) at += align64(size_t(grid.rows_per_tile * grid.cols_per_tile) * 4);
  const size_t q8_at = at;
  if (value.q8_place != kNoPlace) {
    at += size_t(grid.rows_per_tile) * q8_row_bytes(grid.cols_per_tile);
  }
  const size_t bf16_at = at;
  if (value.bf16_place != kNoPlace) at += bf16_bytes(grid.rows_per_tile, grid.cols_per_tile);
  return {q8_at, bf16_at, at};
}

// Where the forms of `value` begin in a staged tile of its producer.
size_t staged_begin(const ProgramPlan& plan, int value, const TileGrid& grid) {
  size_t at = 0;
  const int producer = plan.values[size_t(value)].producer;
  for (const int output : plan.instructions[size_t(producer)]->outputs) {
    if (output == value) break;
    at = staged_forms(plan.values[size_t(output)], grid, at).end;
  }
  return at;
}

static_assert(sizeof(Q8Row) == 4 * sizeof(void*), "copy_q8_columns must copy every part");

// Copies `n` columns of a q8 row of `from_width` columns, from `from_col0` on, to `to_col0` on of
// one of `to_width`. All but the widths are multiples of 32.
void copy_q8_columns(const std::byte* from_row, int64_t from_width, int64_t from_col0,
                     std::byte* to_row, int64_t to_width, int64_t to_col0, int64_t n) {
  const Q8Row from = q8_row_at(from_row, from_width), to = q8_row_at(to_row, to_width);
  const auto copy = [&](const auto* from_part, const auto* to_part, int64_t per) {
    std::memcpy(const_cast<std::remove_cvref_t<decltype(*to_part)>*>(to_part) + to_col0 / per,
                from_part + from_col0 / per, size_t(n / per) * sizeof(*to_part));
  };
  copy(from.q, to.q, 1);
  copy(from.scale, to.scale, kGroup);
  copy(from.scaled_sum, to.scaled_sum, kGroup);
  copy(from.sum, to.sum, kHalfGroup);
}

}  // namespace

size_t staged_value_bytes(const ProgramPlan& plan, const std::vector<int>& outputs,
                          const TileGrid& grid) {
  size_t bytes = 0;
  for (const int output : outputs) {
    bytes = staged_forms(plan.values[size_t(output)], grid, bytes).end;
  }
  return bytes;
}

RowSource::RowSource(const StepContext& step, int value)
    : step_(step),
      grid_(step.grid(step.plan().values[size_t(value)].producer)),
      producer_(step.plan().values[size_t(value)].producer),
      width_(step.plan().values[size_t(value)].width) {
  const Value& v = step.plan().values[size_t(value)];
  if (v.needs_f32) f32_place_ = step.at_place(v.f32_place);
  if (v.q8_place != kNoPlace) q8_place_ = step.at_place(v.q8_place);
  if (v.bf16_place != kNoPlace) bf16_place_ = reinterpret_cast<const uint16_t*>(step.at_place(v.bf16_place));
  f32_staged_ = staged_begin(step.plan(), value, grid_);
  const StagedForms forms = staged_forms(v, grid_, f32_staged_);
  q8_staged_ = forms.q8_at;
  bf16_staged_ = forms.bf16_at;
}

const std::byte* RowSource::result(int row_tile, int col_tile) const {
  return step_.result(producer_, col_tile * grid_.row_tiles() + row_tile);
}

bool RowSource::all_in_place(int row_tile, int col_tile0, int col_tile1) const {
  for (int c = col_tile0; c < col_tile1; ++c) {
    if (result(row_tile, c) != step_.arena()) return false;
  }
  return true;
}

const float* RowSource::f32(int row, int64_t col0, int64_t col1, float* gathered) const {
  const int row_tile = row / grid_.rows_per_tile;
  const int first = int(col0 / grid_.cols_per_tile);
  const int last = int((col1 - 1) / grid_.cols_per_tile) + 1;
  const float* in_place = reinterpret_cast<const float*>(f32_place_) + row * width_;
  if (all_in_place(row_tile, first, last)) return in_place + col0;
  for (int c = first; c < last; ++c) {
    const TileRange range = tile_range(grid_, c * grid_.row_tiles() + row_tile);
    const int64_t from = std::max(col0, range.col0), to = std::min(col1, range.col1);
    const std::byte* where = result(row_tile, c);
    const float* part =
        where == step_.arena()
            ? in_place + from
            : reinterpret_cast<const float*>(where + f32_staged_) +
                  (row - range.row0) * range.num_cols() + (from - range.col0);
    if (last - first == 1) return part;
    std::memcpy(gathered + (from - col0), part, size_t(to - from) * 4);
  }
  return gathered;
}

Q8Row RowSource::q8(int row, std::byte* gathered) const {
  const int row_tile = row / grid_.rows_per_tile;
  const int col_tiles = grid_.col_tiles();
  const std::byte* in_place = q8_place_ + size_t(row) * q8_row_bytes(width_);
  if (all_in_place(row_tile, 0, col_tiles)) return q8_row_at(in_place, width_);
  for (int c = 0; c < col_tiles; ++c) {
    const TileRange range = tile_range(grid_, c * grid_.row_tiles() + row_tile);
    const std::byte* where = result(row_tile, c);
    if (where == step_.arena()) {
      copy_q8_columns(in_place, width_, range.col0, gathered, width_, range.col0, range.num_cols());
      continue;
    }
    const std::byte* part =
        where + q8_staged_ + size_t(row - range.row0) * q8_row_bytes(range.num_cols());
    if (col_tiles == 1) return q8_row_at(part, width_);
    copy_q8_columns(part, range.num_cols(), 0, gathered, width_, range.col0, range.num_cols());
  }
  return q8_row_at(gathered, width_);
}

const uint16_t* RowSource::bf16(int row, uint16_t* gathered) const {
  const int row_tile = row / grid_.rows_per_tile;
  const uint16_t* in_place = bf16_place_ + row * bf16_row_elements(width_);
  if (all_in_place(row_tile, 0, grid_.col_tiles())) return in_place;
  if (width_ % 2 != 0) gathered[width_] = 0;
  for (int c = 0; c < grid_.col_tiles(); ++c) {
    const TileRange range = tile_range(grid_, c * grid_.row_tiles() + row_tile);
    const std::byte* where = result(row_tile, c);
    const uint16_t* part =
        where == step_.arena()
            ? in_place + range.col0
            : reinterpret_cast<const uint16_t*>(where + bf16_staged_) +
                  (row - range.row0) * bf16_row_elements(range.num_cols());
    std::memcpy(gathered + range.col0, part, size_t(range.num_cols()) * sizeof(uint16_t));
  }
  return gathered;
}

RowTarget::RowTarget(TileRun& tile, int value, const TileRange& range)
    : range_(range),
      width_(tile.step.plan().values[size_t(value)].width),
      num_q8_(tile.step.input().num_q8_tokens()) {
  const StepContext& step = tile.step;
  const Value& v = step.plan().values[size_t(value)];
  const int64_t cols = range.num_cols();
  const bool staged = tile.where != step.arena();
  size_t f32_at = 0;
  StagedForms forms{};
  if (staged) {
    const TileGrid& grid = step.grid(tile.instruction);
    f32_at = staged_begin(step.plan(), value, grid);
    forms = staged_forms(v, grid, f32_at);
  }
  f32_stride_ = v.needs_f32 && !staged ? width_ : cols;
  if (!v.needs_f32) {
    f32_ = tile.scratch.take<float>(range.num_rows() * cols);
  } else if (staged) {
    f32_ = reinterpret_cast<float*>(tile.where + f32_at);
  } else {
    f32_ = reinterpret_cast<float*>(step.at_place(v.f32_place)) + range.row0 * width_ + range.col0;
  }
  if (v.bf16_place != kNoPlace) {
    first_bf16_ = v.needs_bf16 ? 0 : num_q8_;
    bf16_stride_ = bf16_row_elements(staged ? cols : width_);
    bf16_ = staged ? reinterpret_cast<uint16_t*>(tile.where + forms.bf16_at)
                   : reinterpret_cast<uint16_t*>(step.at_place(v.bf16_place)) +
                         range.row0 * bf16_stride_ + range.col0;
  }
  if (v.q8_place == kNoPlace) return;
  q8_stride_ = q8_row_bytes(staged ? cols : width_);
  q8_ = staged ? tile.where + forms.q8_at
               : step.at_place(v.q8_place) + size_t(range.row0) * q8_stride_;
  if (!staged && cols != width_) {
    q8_part_ = tile.scratch.take<std::byte>(int64_t(q8_row_bytes(cols)));
  }
}

void RowTarget::finish(int row) const {
  if (bf16_ != nullptr && row >= first_bf16_) {
    round_row_to_bf16(f32(row), range_.num_cols(), bf16_ + (row - range_.row0) * bf16_stride_);
  }
  if (q8_ != nullptr && row < num_q8_) finish_q8(row);
}

void RowTarget::finish_q8(int row) const {
  std::byte* q8_row = q8_ + size_t(row - range_.row0) * q8_stride_;
  if (q8_part_ == nullptr) {
    quantize_row(f32(row), range_.num_cols(), q8_row);
    return;
  }
  quantize_row(f32(row), range_.num_cols(), q8_part_);
  copy_q8_columns(q8_part_, range_.num_cols(), 0, q8_row, width_, range_.col0, range_.num_cols());
}

size_t RowTarget::scratch_bytes(int64_t rows, int64_t cols) {
  return Scratch::bytes<float>(rows * cols) + align64(q8_row_bytes(cols));
}

}  // namespace takt
