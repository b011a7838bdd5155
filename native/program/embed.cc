#include "program/embed.h"

#include <algorithm>

#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {

Embed::Embed(const StepLimits& limits, int num_threads, std::shared_ptr<const PackedWeight> table,
             float scale, int32_t first_token, int output)
    : max_num_tokens_(limits.max_num_tokens),
      num_threads_(num_threads),
      table_(std::move(table)),
      scale_(scale),
      first_token_(first_token) {
  outputs = {output};
}

TileGrid Embed::grid(const StepContext& step) const {
  return row_grid(step.input().num_tokens(), table_->cols(), num_threads_);
}

int32_t Embed::max_tiles() const {
  return most_tiles(max_num_tokens_,
                    [&](int32_t rows) { return row_grid(rows, table_->cols(), num_threads_); });
}

void Embed::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const RowTarget out(tile, outputs[0], range);
  for (int row = range.row0; row < range.row1; ++row) {
    const int64_t at = int64_t{tile.step.input().token_ids()[row]} - first_token_;
    if (at >= 0 && at < table_->rows()) {
      embed_row(*table_, at, scale_, out.f32(row));
    } else {
      std::fill_n(out.f32(row), table_->cols(), 0.0f);
    }
    out.finish(row);
  }
}

size_t Embed::scratch_bytes() const {
  return RowTarget::scratch_bytes(kMaxRowsPerRowTile, table_->cols());
}

size_t Embed::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t Embed::tile_work(const StepContext&, const TileGrid& grid) const {
  return grid.rows_per_tile * grid.num_cols;
}

}  // namespace takt
