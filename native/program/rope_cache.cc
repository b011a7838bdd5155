#include "program/rope_cache.h"

#include "kernels/attention.h"
#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {

RopeCache::RopeCache(const StepLimits& limits, int num_threads, Operands operands,
                     std::shared_ptr<const KVPool> kv, int after, int q_output)
    : max_num_tokens_(limits.max_num_tokens),
      num_threads_(num_threads),
      operands_(std::move(operands)),
      kv_(std::move(kv)),
      after_(after),
      num_kv_heads_(kv_->num_kv_heads()),
      head_dim_(kv_->head_dim()),
      q_width_(operands_.num_heads / num_kv_heads_ * head_dim_) {
  outputs = {q_output};
}

// A tile is some rows of one KV head and of the query heads that share it.
TileGrid RopeCache::grid_for(int32_t rows) const {
  TileGrid grid = row_grid(rows, num_kv_heads_ * q_width_, num_threads_);
  grid.cols_per_tile = q_width_;
  return grid;
}

TileGrid RopeCache::grid(const StepContext& step) const {
  return grid_for(step.input().num_tokens());
}

int32_t RopeCache::max_tiles() const {
  return most_tiles(max_num_tokens_, [&](int32_t rows) { return grid_for(rows); });
}

void RopeCache::rotate(const float* head, const SharedVector& norm, int32_t position,
                       float* to) const {
  if (norm != nullptr) {
    rms_norm_row(head, norm->data(), operands_.norm_eps, head_dim_, to);
    head = to;
  }
  const int64_t at = position * (head_dim_ / 2);
  rope_head(head, head_dim_, operands_.cos->data() + at, operands_.sin->data() + at, to);
}

void RopeCache::run(TileRun tile) const noexcept {
  const StepContext& step = tile.step;
  const TileRange range = tile_range(step.grid(tile.instruction), tile.tile);
  const int64_t kv_head = range.col0 / q_width_;
  const RowSource qkv(step, operands_.qkv);
  const RowTarget q_out(tile, outputs[0], range);
  float* gathered = tile.scratch.take<float>(q_width_);
  float* k = tile.scratch.take<float>(head_dim_);
  const KVLayer& cache = kv_->layer(operands_.layer);
  const int64_t* slots = step.input().slot_mapping(kv_->group_of(operands_.layer));
  const int64_t k_begin = operands_.num_heads * head_dim_ + kv_head * head_dim_;
  const int64_t v_begin = k_begin + num_kv_heads_ * head_dim_;

  for (int row = range.row0; row < range.row1; ++row) {
    const int32_t position = step.input().positions()[row];
    const float* q = qkv.f32(row, range.col0, range.col1, gathered);
    for (int64_t at = 0; at < q_width_; at += head_dim_) {
      rotate(q + at, operands_.q_norm, position, q_out.f32(row) + at);
    }
    q_out.finish(row);
    rotate(qkv.f32(row, k_begin, k_begin + head_dim_, gathered), operands_.k_norm, position, k);
    const float* v = qkv.f32(row, v_begin, v_begin + head_dim_, gathered);
    kv_store(cache, slots[row], kv_head, k, v);
  }
}

size_t RopeCache::scratch_bytes() const {
  return RowTarget::scratch_bytes(kMaxRowsPerRowTile, q_width_) +
         2 * Scratch::bytes<float>(q_width_);
}

size_t RopeCache::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t RopeCache::tile_work(const StepContext&, const TileGrid& grid) const {
  return 8 * grid.rows_per_tile * grid.cols_per_tile;
}

}  // namespace takt
