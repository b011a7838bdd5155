#include "program/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {
AttentionSplits::AttentionSplits(const StepLimits& limits, AttentionOperands operands,
                                 std::shared_ptr<const KVPool> kv, int rows_place,
                                 int partials_place)
    : limits_(limits),
      operands_(operands),
      kv_(std::move(kv)),
      rows_place_(rows_place),
      partials_place_(partials_place) {}

TileGrid AttentionSplits::grid(const StepContext& step) const {
  const AttentionWork& work = step.attention(operands_.shape_index);
  return {work.num_items(), 1, operands_.shape.num_kv_heads, work.kv_heads_per_tile()};
}

int32_t AttentionSplits::max_tiles() const {
  return AttentionWork::max_items(limits_) * int32_t(operands_.shape.num_kv_heads);
}

// Floats of a row of the heads that share a KV head.
int64_t AttentionSplits::row_floats(const AttentionItem& item) const {
  const int64_t head_dim = operands_.shape.head_dim;
  return operands_.shape.heads_per_kv() *
         (item.is_final() ? head_dim : int64_t(partial_floats(head_dim)));
}

// Row 0 of the item, of the heads that share `kv_head`, and the floats from one row to the next.
AttentionSplits::Rows AttentionSplits::rows(const StepContext& step, const AttentionItem& item,
                                            std::byte* where, int64_t first_kv_head,
                                            int64_t kv_head) const {
  const int64_t floats = row_floats(item), num_kv_heads = operands_.shape.num_kv_heads;
  if (where != step.arena()) {
    return {reinterpret_cast<float*>(where) +
                (kv_head - first_kv_head) * item.num_result_rows() * floats,
            floats};
  }
  std::byte* place = step.at_place(item.is_final() ? rows_place_ : partials_place_);
  const int64_t row = item.is_final() ? item.token0 : item.partial_row;
  return {reinterpret_cast<float*>(place) + (row * num_kv_heads + kv_head) * floats,
          floats * num_kv_heads};
}

const float* AttentionSplits::result(const StepContext& step, int instruction, int item_index,
                                     int row, int64_t kv_head) const {
  const AttentionWork& work = step.attention(operands_.shape_index);
  const int64_t head_tile = kv_head / work.kv_heads_per_tile();
  std::byte* where = step.result(instruction, int(head_tile) * work.num_items() + item_index);
  const Rows found = rows(step, work.item(item_index), where,
                          head_tile * work.kv_heads_per_tile(), kv_head);
  return found.first + row * found.stride;
}

void AttentionSplits::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const AttentionItem& item =
      tile.step.attention(operands_.shape_index).item(range.row0);
  for (int64_t kv_head = range.col0; kv_head < range.col1; ++kv_head) {
    run_head(tile, item, kv_head, kv_head + 1 < range.col1,
             rows(tile.step, item, tile.where, range.col0, kv_head));
  }
}

void AttentionSplits::run_head(const TileRun& tile, const AttentionItem& item, int64_t kv_head,
                               bool another_follows, Rows out) const {
  const AttentionShape& shape = operands_.shape;
  const StepInput& input = tile.step.input();
  const AttentionArgs args{kv_->layer(operands_.layer),
                           input.block_table(shape.kv_group, item.seq),
                           operands_.scale,
                           operands_.softcap,
                           shape.window,
                           shape.heads_per_kv()};
  const int64_t heads = shape.heads_per_kv();
  const int32_t* positions = input.positions() + item.token0;
  const RowSource source(tile.step, operands_.q);
  Scratch scratch = tile.scratch;
  const float* q[AttentionWork::kMaxRows];
  for (int i = 0; i < item.num_rows; ++i) {
    const int64_t col0 = kv_head * heads * shape.head_dim;
    q[i] = source.f32(item.token0 + i, col0, col0 + heads * shape.head_dim,
                      scratch.take<float>(heads * shape.head_dim));
  }
  const auto split_into = [&](int32_t split, float* const* to) {
    AttentionNext next;
    if (split + 1 < item.last_split) {
      next = {kv_head, split + 1};
    } else if (another_follows) {
      next = {kv_head + 1, item.first_split};
    }
    attention_split(args, kv_head, split, item.num_rows, positions, q, to, next);
  };
  if (item.is_final()) return merge_splits(item, scratch, out, split_into);
  float* to[AttentionWork::kMaxRows];
  for (int32_t split = item.first_split; split < item.last_split; ++split) {
    const int64_t row0 = (split - item.first_split) * item.num_rows;
    for (int i = 0; i < item.num_rows; ++i) to[i] = out.first + (row0 + i) * out.stride;
    split_into(split, to);
  }
}

// Runs the splits one after the other and merges them: final rows.
template <class SplitInto>
void AttentionSplits::merge_splits(const AttentionItem& item, Scratch scratch, Rows out,
                                   SplitInto split_into) const {
  const int64_t head_dim = operands_.shape.head_dim, heads = operands_.shape.heads_per_kv();
  const auto partial = int64_t(partial_floats(head_dim));
  float* merged[AttentionWork::kMaxRows];
  float* next[AttentionWork::kMaxRows];
  for (int i = 0; i < item.num_rows; ++i) {
    merged[i] = scratch.take<float>(heads * partial);
    next[i] = scratch.take<float>(heads * partial);
  }
  split_into(item.first_split, merged);
  for (int32_t split = item.first_split + 1; split < item.last_split; ++split) {
    split_into(split, next);
    for (int i = 0; i < item.num_rows; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        attention_merge(next[i] + h * partial, head_dim, merged[i] + h * partial);
      }
    }
  }
  for (int i = 0; i < item.num_rows; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      attention_finish(merged[i] + h * partial, head_dim,
                       out.first + i * out.stride + h * head_dim);
    }
  }
}

size_t AttentionSplits::scratch_bytes() const {
  const int64_t heads = operands_.shape.heads_per_kv(), head_dim = operands_.shape.head_dim;
  return AttentionWork::kMaxRows *
         (Scratch::bytes<float>(heads * head_dim) +
          2 * Scratch::bytes<float>(heads * int64_t(partial_floats(head_dim))));
}

size_t AttentionSplits::staged_bytes(const ProgramPlan&, const TileGrid& grid) const {
  const AttentionShape& shape = operands_.shape;
  return size_t(AttentionWork::kMaxItemPartialRows * grid.cols_per_tile * shape.heads_per_kv()) *
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
      splits_instruction_(splits_instruction) {
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
  float* merged = tile.scratch.take<float>(int64_t(partial_floats(shape.head_dim)));
  for (int row = range.row0; row < range.row1; ++row) {
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      combine_heads(tile.step, row, kv_head, merged,
                    out.f32(row) + kv_head * shape.heads_per_kv() * shape.head_dim);
    }
    out.finish(row);
  }
}

// The heads that share a KV head, of one row; `merged` has room for a partial result.
void AttentionCombine::combine_heads(const StepContext& step, int row, int64_t kv_head,
                                     float* merged, float* out) const {
  const AttentionShape& shape = operands_.shape;
  const AttentionWork& work = step.attention(operands_.shape_index);
  const int64_t heads = shape.heads_per_kv(), partial = int64_t(partial_floats(shape.head_dim));
  const SplitRange own = visible_splits(step.input().positions()[row], shape.window);
  const AttentionWork::Place first = work.place_of(row, own.first);
  if (work.item(first.item).is_final()) {
    const float* final =
        splits_->result(step, splits_instruction_, first.item, first.row, kv_head);
    // The next row's lie behind all heads of this one, if they are in their place too.
    const float* next = final + shape.num_heads * shape.head_dim;
    for (int64_t i = 0; i < heads * shape.head_dim; i += 16) __builtin_prefetch(next + i);
    std::memcpy(out, final, size_t(heads * shape.head_dim) * sizeof(float));
    return;
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int32_t split = own.first; split < own.last; ++split) {
      const AttentionWork::Place place = work.place_of(row, split);
      const float* next = h * partial + splits_->result(step, splits_instruction_, place.item,
                                                        place.row, kv_head);
      if (split == own.first) {
        std::memcpy(merged, next, size_t(partial) * sizeof(float));
      } else {
        attention_merge(next, shape.head_dim, merged);
      }
    }
    attention_finish(merged, shape.head_dim, out + h * shape.head_dim);
  }
}

size_t AttentionCombine::scratch_bytes() const {
  const AttentionShape& shape = operands_.shape;
  return RowTarget::scratch_bytes(kMaxRowsPerRowTile, shape.num_heads * shape.head_dim) +
         Scratch::bytes<float>(int64_t(partial_floats(shape.head_dim)));
}

size_t AttentionCombine::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t AttentionCombine::tile_work(const StepContext& step, const TileGrid& grid) const {
  const int64_t splits = step.attention(operands_.shape_index).max_row_splits();
  return grid.rows_per_tile * grid.num_cols * std::max<int64_t>(splits, 2);
}

}  // namespace takt
