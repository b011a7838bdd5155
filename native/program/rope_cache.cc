#include "program/rope_cache.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention.h"
#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {
namespace {

// Of K in a row of a tile: with 16 rows, 32 KiB of K and as many of V.
constexpr int64_t kMaxKVFloats = 512;

}  // namespace

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

// A tile is some rows of some KV heads and of the query heads that share each: of all heads whose
// K and V have room near the core, but of one where rows are so few that tiles would be too.
TileGrid RopeCache::grid_for(int32_t rows) const {
  TileGrid grid = row_grid(rows, num_kv_heads_ * q_width_, num_threads_);
  grid.cols_per_tile = q_width_ * (grid.rows_per_tile > 1 ? max_kv_heads() : 1);
  return grid;
}

int64_t RopeCache::max_kv_heads() const {
  return std::clamp<int64_t>(kMaxKVFloats / head_dim_, 1, num_kv_heads_);
}

TileGrid RopeCache::grid(const StepContext& step) const {
  return grid_for(step.input().num_tokens());
}

int32_t RopeCache::max_tiles() const {
  return most_tiles(max_num_tokens_, [&](int32_t rows) { return grid_for(rows); });
}

void RopeCache::rotate(const float* heads, int64_t num_heads, const SharedVector& norm,
                       int32_t position, float* to) const {
  if (norm != nullptr) {
    for (int64_t at = 0; at < num_heads * head_dim_; at += head_dim_) {
      rms_norm_row(heads + at, norm->data(), operands_.norm_eps, head_dim_, to + at);
    }
    heads = to;
  }
  const int64_t at = position * (head_dim_ / 2);
  rope_heads(heads, num_heads, head_dim_, operands_.cos->data() + at, operands_.sin->data() + at,
             to);
}

void RopeCache::run(TileRun tile) const noexcept {
  const StepContext& step = tile.step;
  const TileRange range = tile_range(step.grid(tile.instruction), tile.tile);
  const int64_t kv_head0 = range.col0 / q_width_, num_kv_heads = range.num_cols() / q_width_;
  const int64_t kv_width = num_kv_heads * head_dim_;
  const RowSource qkv(step, operands_.qkv);
  const RowTarget q_out(tile, outputs[0], range);
  float* gathered = tile.scratch.take<float>(range.num_cols());
  float* k_rows = tile.scratch.take<float>(range.num_rows() * kv_width);
  float* v_rows = tile.scratch.take<float>(range.num_rows() * kv_width);
  const int64_t k_begin = (operands_.num_heads + kv_head0) * head_dim_;
  const int64_t v_begin = k_begin + num_kv_heads_ * head_dim_;

  for (int row = range.row0; row < range.row1; ++row) {
    const int32_t position = step.input().positions()[row];
    const int64_t at = (row - range.row0) * kv_width;
    rotate(qkv.f32(row, range.col0, range.col1, gathered), range.num_cols() / head_dim_,
           operands_.q_norm, position, q_out.f32(row));
    q_out.finish(row);
    rotate(qkv.f32(row, k_begin, k_begin + kv_width, gathered), num_kv_heads, operands_.k_norm,
           position, k_rows + at);
    const float* v = qkv.f32(row, v_begin, v_begin + kv_width, v_rows + at);
    if (v != v_rows + at) std::memcpy(v_rows + at, v, size_t(kv_width) * sizeof(float));
  }
  const int64_t* slots = step.input().slot_mapping(kv_->group_of(operands_.layer)) + range.row0;
  for (int64_t head = 0; head < num_kv_heads; ++head) {
    kv_store_rows(kv_->layer(operands_.layer), slots, range.num_rows(), kv_head0 + head,
                  k_rows + head * head_dim_, kv_width, v_rows + head * head_dim_, kv_width);
  }
}

size_t RopeCache::scratch_bytes() const {
  const int64_t cols = max_kv_heads() * q_width_;
  return RowTarget::scratch_bytes(kMaxRowsPerRowTile, cols) + Scratch::bytes<float>(cols) +
         2 * Scratch::bytes<float>(kMaxRowsPerRowTile * max_kv_heads() * head_dim_);
}

size_t RopeCache::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t RopeCache::tile_work(const StepContext&, const TileGrid& grid) const {
  return 8 * grid.rows_per_tile * grid.cols_per_tile;
}

}  // namespace takt
