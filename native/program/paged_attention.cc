#include "program/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {
namespace {

int64_t most_splits(const StepLimits& limits, int64_t block_size) {
  return (limits.max_blocks_per_seq * block_size + kSplit - 1) / kSplit;
}

}  // namespace

AttentionSplits::AttentionSplits(const StepLimits& limits, AttentionOperands operands,
                                 std::shared_ptr<const KVPool> kv, int rows_place,
                                 int partials_place)
    : limits_(limits),
      operands_(operands),
      kv_(std::move(kv)),
      rows_place_(rows_place),
      partials_place_(partials_place),
      max_row_splits_(std::max<int64_t>(AttentionWork::kMaxRowSplits,
                                        most_splits(limits, kv_->block_size()))) {}

TileGrid AttentionSplits::grid(const StepContext& step) const {
  const AttentionWork& work = step.attention(operands_.shape_index);
  return {work.num_items(), 1, operands_.shape.num_kv_heads, work.kv_heads_per_tile()};
}

int32_t AttentionSplits::max_tiles() const {
  return AttentionWork::max_items(limits_, kv_->block_size()) *
         int32_t(operands_.shape.num_kv_heads);
}

int64_t AttentionSplits::head_floats(const AttentionItem& item) const {
  const int64_t head_dim = operands_.shape.head_dim;
  return operands_.shape.heads_per_kv() *
         (item.partial_row < 0 ? head_dim : int64_t(partial_floats(head_dim)));
}

// Floats from one row of a KV head's result to the next.
int64_t AttentionSplits::row_stride(const StepContext& step, const AttentionItem& item,
                                    const std::byte* where) const {
  return where == step.arena() ? head_floats(item) * operands_.shape.num_kv_heads
                               : head_floats(item);
}

// Row 0 of the item, of the heads that share `kv_head`.
float* AttentionSplits::target(const StepContext& step, const AttentionItem& item,
                               std::byte* where, int64_t first_kv_head, int64_t kv_head) const {
  const int64_t floats = head_floats(item);
  if (where != step.arena()) {
    return reinterpret_cast<float*>(where) + (kv_head - first_kv_head) * item.num_rows * floats;
  }
  const bool final = item.partial_row < 0;
  std::byte* place = step.at_place(final ? rows_place_ : partials_place_);
  const int64_t row = final ? item.token0 : item.partial_row;
  return reinterpret_cast<float*>(place) +
         (row * operands_.shape.num_kv_heads + kv_head) * floats;
}

const float* AttentionSplits::result(const StepContext& step, int instruction, int item_index,
                                     int row, int64_t kv_head) const {
  const AttentionWork& work = step.attention(operands_.shape_index);
  const AttentionItem& item = work.item(item_index);
  const int64_t head_tile = kv_head / work.kv_heads_per_tile();
  std::byte* where = step.result(instruction, int(head_tile) * work.num_items() + item_index);
  return target(step, item, where, head_tile * work.kv_heads_per_tile(), kv_head) +
         row * row_stride(step, item, where);
}

void AttentionSplits::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const AttentionItem& item =
      tile.step.attention(operands_.shape_index).item(range.row0);
  float* partials = tile.scratch.take<float>(max_row_splits_ * operands_.shape.heads_per_kv() *
                                             int64_t(partial_floats(operands_.shape.head_dim)));
  for (int64_t kv_head = range.col0; kv_head < range.col1; ++kv_head) {
    float* out = target(tile.step, item, tile.where, range.col0, kv_head);
    run_head(tile, item, kv_head, out, row_stride(tile.step, item, tile.where), partials);
  }
}

void AttentionSplits::run_head(const TileRun& tile, const AttentionItem& item, int64_t kv_head,
                               float* out, int64_t out_stride, float* partials) const {
  const AttentionShape& shape = operands_.shape;
  const StepInput& input = tile.step.input();
  const AttentionArgs args{kv_->layer(operands_.layer),
                           input.block_table(shape.kv_group, item.seq),
                           operands_.scale,
                           operands_.softcap,
                           shape.window,
                           shape.heads_per_kv()};
  const int64_t heads = shape.heads_per_kv(), partial = int64_t(partial_floats(shape.head_dim));
  const int32_t* positions = input.positions() + item.token0;
  const RowSource source(tile.step, operands_.q);
  Scratch scratch = tile.scratch;
  const float* q[AttentionWork::kMaxRows];
  float* to[AttentionWork::kMaxRows];
  for (int i = 0; i < item.num_rows; ++i) {
    const int64_t col0 = kv_head * heads * shape.head_dim;
    q[i] = source.f32(item.token0 + i, col0, col0 + heads * shape.head_dim,
                      scratch.take<float>(heads * shape.head_dim));
  }
  const bool final = item.partial_row < 0;
  const int64_t split_stride = item.num_rows * heads * partial;
  for (int32_t split = item.first_split; split < item.last_split; ++split) {
    for (int i = 0; i < item.num_rows; ++i) {
      to[i] = final ? partials + (split - item.first_split) * split_stride + i * heads * partial
                    : out + i * out_stride;
    }
    attention_split(args, kv_head, split, item.num_rows, positions, q, to);
  }
  if (!final) return;
  for (int i = 0; i < item.num_rows; ++i) {
    // Only splits that the row itself sees: what its neighbours see must not matter.
    const SplitRange own = visible_splits(positions[i], shape.window);
    const float* first =
        partials + (own.first - item.first_split) * split_stride + i * heads * partial;
    for (int64_t h = 0; h < heads; ++h) {
      attention_combine(first + h * partial, own.last - own.first, split_stride, shape.head_dim,
                        out + i * out_stride + h * shape.head_dim);
    }
  }
}

size_t AttentionSplits::scratch_bytes() const {
  const AttentionShape& shape = operands_.shape;
  return Scratch::bytes<float>(max_row_splits_ * shape.heads_per_kv() *
                               int64_t(partial_floats(shape.head_dim))) +
         AttentionWork::kMaxRows * Scratch::bytes<float>(shape.heads_per_kv() * shape.head_dim);
}

size_t AttentionSplits::staged_bytes(const ProgramPlan&, const TileGrid& grid) const {
  const AttentionShape& shape = operands_.shape;
  return size_t(AttentionWork::kMaxRows * grid.cols_per_tile * shape.heads_per_kv()) *
         partial_floats(shape.head_dim) * sizeof(float);
}

int64_t AttentionSplits::tile_work(const StepContext& step, const TileGrid& grid) const {
  const AttentionWork& work = step.attention(operands_.shape_index);
  return 2 * work.max_row_splits() * kSplit * operands_.shape.heads_per_kv() *
         operands_.shape.head_dim * grid.cols_per_tile;
}

AttentionCombine::AttentionCombine(const StepLimits& limits, int num_threads,
                                   AttentionOperands operands, const AttentionSplits* splits,
                                   int splits_instruction, int output)
    : limits_(limits),
      num_threads_(num_threads),
      operands_(operands),
      splits_(splits),
      splits_instruction_(splits_instruction),
      // Only items of one split each are combined here, and those share a place of so many rows.
      max_splits_(AttentionWork::kMaxPartialRows) {
  outputs = {output};
}

TileGrid AttentionCombine::grid(const StepContext& step) const {
  const int64_t width = operands_.shape.num_heads * operands_.shape.head_dim;
  return row_grid(step.input().num_tokens(), width, num_threads_);
}

int32_t AttentionCombine::max_tiles() const {
  const int64_t width = operands_.shape.num_heads * operands_.shape.head_dim;
  return most_tiles(limits_.max_num_tokens,
                    [&](int32_t rows) { return row_grid(rows, width, num_threads_); });
}

void AttentionCombine::run(TileRun tile) const noexcept {
  const AttentionShape& shape = operands_.shape;
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const RowTarget out(tile, outputs[0], range);
  float* partials =
      tile.scratch.take<float>(max_splits_ * int64_t(partial_floats(shape.head_dim)));
  for (int row = range.row0; row < range.row1; ++row) {
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      combine_heads(tile.step, row, kv_head, partials,
                    out.f32(row) + kv_head * shape.heads_per_kv() * shape.head_dim);
    }
    out.finish(row);
  }
}

// The heads that share a KV head, of one row.
void AttentionCombine::combine_heads(const StepContext& step, int row, int64_t kv_head,
                                     float* partials, float* out) const {
  const AttentionShape& shape = operands_.shape;
  const AttentionWork& work = step.attention(operands_.shape_index);
  const int64_t heads = shape.heads_per_kv(), partial = int64_t(partial_floats(shape.head_dim));
  const SplitRange own = visible_splits(step.input().positions()[row], shape.window);
  const int first = work.item_of(row, own.first);
  const int row_of_item = row - work.item(first).token0;
  if (work.item(first).partial_row < 0) {
    const float* final = splits_->result(step, splits_instruction_, first, row_of_item, kv_head);
    std::memcpy(out, final, size_t(heads * shape.head_dim) * sizeof(float));
    return;
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int32_t split = own.first; split < own.last; ++split) {
      const float* part = splits_->result(step, splits_instruction_, first + (split - own.first),
                                          row_of_item, kv_head);
      std::memcpy(partials + (split - own.first) * partial, part + h * partial,
                  size_t(partial) * sizeof(float));
    }
    attention_combine(partials, own.last - own.first, partial, shape.head_dim,
                      out + h * shape.head_dim);
  }
}

size_t AttentionCombine::scratch_bytes() const {
  const AttentionShape& shape = operands_.shape;
  return RowTarget::scratch_bytes(kMaxRowsPerRowTile, shape.num_heads * shape.head_dim) +
         Scratch::bytes<float>(max_splits_ * int64_t(partial_floats(shape.head_dim)));
}

size_t AttentionCombine::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t AttentionCombine::tile_work(const StepContext& step, const TileGrid& grid) const {
  const int64_t splits = step.attention(operands_.shape_index).max_row_splits();
  return grid.rows_per_tile * grid.num_cols * std::max<int64_t>(splits, 2);
}

}  // namespace takt
