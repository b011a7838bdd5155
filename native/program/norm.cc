#include "program/norm.h"

#include <cstring>
#include <optional>

#include "kernels/attention.h"
#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {

Norm::Norm(const StepLimits& limits, int num_threads, Operands operands, int normed, int sum)
    : max_num_tokens_(limits.max_num_tokens),
      num_threads_(num_threads),
      operands_(std::move(operands)),
      normed_(normed),
      sum_(sum) {
  outputs = {normed_};
  if (sum_ != kNoValue) outputs.push_back(sum_);
}

TileGrid Norm::grid(const StepContext& step) const {
  return row_grid(step.input().num_tokens(), operands_.width, num_threads_);
}

int32_t Norm::max_tiles() const {
  return most_tiles(max_num_tokens_,
                    [&](int32_t rows) { return row_grid(rows, operands_.width, num_threads_); });
}

void Norm::run(TileRun tile) const noexcept {
  const StepContext& step = tile.step;
  const int64_t n = operands_.width;
  const TileRange range = tile_range(step.grid(tile.instruction), tile.tile);
  const RowSource x(step, operands_.x);
  std::optional<RowSource> residual;
  if (operands_.residual != kNoValue) residual.emplace(step, operands_.residual);
  const RowTarget normed(tile, normed_, range);
  std::optional<RowTarget> sum;
  if (sum_ != kNoValue) sum.emplace(tile, sum_, range);
  float* gathered = tile.scratch.take<float>(n);
  float* gathered_residual = tile.scratch.take<float>(n);
  float* post = tile.scratch.take<float>(n);

  for (int row = range.row0; row < range.row1; ++row) {
    const float* r = x.f32(row, gathered);
    if (operands_.post_weight != nullptr) {
      float* y = residual || !sum ? post : sum->f32(row);
      rms_norm_row(r, operands_.post_weight->data(), operands_.eps, n, y);
      r = y;
    }
    if (residual) {
      add_rms_norm_row(residual->f32(row, gathered_residual), r, operands_.weight->data(),
                       operands_.eps, n, sum->f32(row), normed.f32(row));
    } else {
      rms_norm_row(r, operands_.weight->data(), operands_.eps, n, normed.f32(row));
    }
    normed.finish(row);
    if (sum) sum->finish(row);
  }
}

size_t Norm::scratch_bytes() const {
  return 2 * RowTarget::scratch_bytes(kMaxRowsPerRowTile, operands_.width) +
         3 * Scratch::bytes<float>(operands_.width);
}

size_t Norm::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t Norm::tile_work(const StepContext&, const TileGrid& grid) const {
  return 4 * grid.rows_per_tile * grid.num_cols;
}

}  // namespace takt
