#include "program/product.h"

#include <cstring>

#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {
namespace {

// Quantised groups of outputs must not straddle tiles.
constexpr int64_t kAlign = kGroup;

size_t widest_tile(int64_t max_rows, const auto& grid_of) {
  size_t most = 0;
  for (int32_t rows = 1; rows <= int32_t(max_rows); ++rows) {
    const TileGrid grid = grid_of(rows);
    most = std::max(most, RowTarget::scratch_bytes(grid.rows_per_tile, grid.cols_per_tile));
  }
  return most;
}

}  // namespace

size_t ProductRows::scratch_bytes(const PackedWeight& w, int64_t num_rows) {
  size_t bytes = 0;
  if (w.is_quantised()) {
    bytes += Scratch::bytes<Q8Row>(num_rows) +
             Scratch::bytes<std::byte>(int64_t(q8_row_bytes(w.cols())) * num_rows);
  }
  if (w.needs_f32()) {
    bytes += Scratch::bytes<const float*>(num_rows) + Scratch::bytes<float>(w.cols() * num_rows);
  }
  if (w.needs_bf16() || w.is_quantised()) {
    bytes += Scratch::bytes<const uint16_t*>(num_rows) +
             Scratch::bytes<uint16_t>(bf16_row_elements(w.cols()) * num_rows);
  }
  return bytes;
}

void ProductRows::space_evenly(const uint16_t** rows, int num, uint16_t* gathered,
                               int64_t width) {
  const int64_t stride = bf16_row_elements(width);
  // Choices of one prompt have the same row.
  bool is_even = num < 2 || rows[1] != rows[0];
  for (int i = 2; i < num; ++i) is_even &= rows[i] - rows[i - 1] == rows[1] - rows[0];
  if (is_even) return;
  for (int i = 0; i < num; ++i) {
    uint16_t* to = gathered + i * stride;
    if (rows[i] != to) std::memcpy(to, rows[i], size_t(width) * sizeof(uint16_t));
    rows[i] = to;
  }
}

Linear::Linear(const StepLimits& limits, int num_threads, int x,
               std::shared_ptr<const PackedWeight> w, int output)
    : max_num_tokens_(limits.max_num_tokens),
      num_threads_(num_threads),
      x_(x),
      w_(std::move(w)) {
  outputs = {output};
}

TileGrid Linear::grid_for(int32_t rows) const {
  return product_grid(rows, w_->rows(), w_->cols(), kAlign, num_threads_);
}

TileGrid Linear::grid(const StepContext& step) const {
  return grid_for(step.input().num_tokens());
}

int32_t Linear::max_tiles() const {
  return most_tiles(max_num_tokens_, [&](int32_t rows) { return grid_for(rows); });
}

void Linear::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const RowTarget out(tile, outputs[0], range);
  const ProductRows x(tile, RowSource(tile.step, x_), *w_, range.num_rows(),
                      [&](int i) { return range.row0 + i; });
  linear(*w_, range.col0, range.col1, x.rows(), out.f32(range.row0), out.f32_stride(),
         tile.step.next_weights(tile.instruction, tile.tile));
  for (int row = range.row0; row < range.row1; ++row) out.finish(row);
}

WeightMemory Linear::weights(const TileGrid& grid, int tile) const {
  const TileRange range = tile_range(grid, tile);
  return {{w_->memory_of_rows(range.col0, range.col1)}};
}

size_t Linear::scratch_bytes() const {
  return widest_tile(max_num_tokens_, [&](int32_t rows) { return grid_for(rows); }) +
         ProductRows::scratch_bytes(*w_, kMaxProductRows);
}

size_t Linear::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t Linear::tile_work(const StepContext&, const TileGrid& grid) const {
  return grid.rows_per_tile * grid.cols_per_tile * w_->cols();
}

GatedLinear::GatedLinear(const StepLimits& limits, int num_threads, int x,
                         std::shared_ptr<const PackedWeight> w, Gate kind, int output)
    : max_num_tokens_(limits.max_num_tokens),
      num_threads_(num_threads),
      x_(x),
      w_(std::move(w)),
      width_(w_->rows() / 2),
      kind_(kind) {
  outputs = {output};
}

TileGrid GatedLinear::grid_for(int32_t rows) const {
  // A column of the output takes two rows of weights.
  return product_grid(rows, width_, 2 * w_->cols(), kAlign, num_threads_);
}

TileGrid GatedLinear::grid(const StepContext& step) const {
  return grid_for(step.input().num_tokens());
}

int32_t GatedLinear::max_tiles() const {
  return most_tiles(max_num_tokens_, [&](int32_t rows) { return grid_for(rows); });
}

void GatedLinear::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const int64_t cols = range.num_cols();
  const RowTarget out(tile, outputs[0], range);
  const ProductRows x(tile, RowSource(tile.step, x_), *w_, range.num_rows(),
                      [&](int i) { return range.row0 + i; });
  float* gate = tile.scratch.take<float>(range.num_rows() * cols);
  float* up = tile.scratch.take<float>(range.num_rows() * cols);
  linear(*w_, range.col0, range.col1, x.rows(), gate, cols,
         w_->memory_of_rows(width_ + range.col0, width_ + range.col1).data());
  linear(*w_, width_ + range.col0, width_ + range.col1, x.rows(), up, cols,
         tile.step.next_weights(tile.instruction, tile.tile));
  for (int row = range.row0; row < range.row1; ++row) {
    const int64_t at = (row - range.row0) * cols;
    gate_row(kind_, gate + at, up + at, cols, out.f32(row));
    out.finish(row);
  }
}

WeightMemory GatedLinear::weights(const TileGrid& grid, int tile) const {
  const TileRange range = tile_range(grid, tile);
  return {{w_->memory_of_rows(range.col0, range.col1),
           w_->memory_of_rows(width_ + range.col0, width_ + range.col1)}};
}

size_t GatedLinear::scratch_bytes() const {
  return 3 * widest_tile(max_num_tokens_, [&](int32_t rows) { return grid_for(rows); }) +
         ProductRows::scratch_bytes(*w_, kMaxProductRows);
}

size_t GatedLinear::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t GatedLinear::tile_work(const StepContext&, const TileGrid& grid) const {
  return 2 * grid.rows_per_tile * grid.cols_per_tile * w_->cols();
}

}  // namespace takt
