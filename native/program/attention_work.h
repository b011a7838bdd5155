// How one step's attention is cut into tiles.
#pragma once
#include <cstdint>
#include <vector>

#include "program/step_input.h"

namespace takt {

// Layers that share one cut: equal KV group, window and heads.
struct AttentionShape {
  int kv_group;
  int64_t window;  // 0: none
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;

  int64_t heads_per_kv() const { return num_heads / num_kv_heads; }
  bool operator==(const AttentionShape&) const = default;
};

// Splits [first, last) of the context that the token at `position` sees.
struct SplitRange {
  int32_t first, last;
};
SplitRange visible_splits(int64_t position, int64_t window);

// Some rows of one sequence over some of its splits. An item of all splits that its rows see gives
// final rows; others give partial results [num_splits, num_rows], to be merged in order.
struct AttentionItem {
  int32_t seq;
  int32_t token0;
  int32_t num_rows;
  int32_t first_split, last_split;
  int32_t partial_row;  // row of the place of partial results; -1: this item gives final rows

  bool is_final() const { return partial_row < 0; }
  int32_t num_splits() const { return last_split - first_split; }
  int32_t num_result_rows() const { return is_final() ? num_rows : num_rows * num_splits(); }
};

class AttentionWork {
 public:
  AttentionWork(const AttentionShape& shape, const StepLimits& limits, int num_threads);

  // Cuts a step; tells whether it has other tiles than the one before.
  bool build(const StepInput& input);

  const AttentionShape& shape() const { return shape_; }
  int num_items() const { return int(items_.size()); }
  const AttentionItem& item(int index) const { return items_[size_t(index)]; }
  // Where the result of a token and split (of those that the token sees) is: an item and a row of
  // its result. Items of one block of rows have equally many splits, but for the last.
  struct Place {
    int item;
    int row;
  };
  Place place_of(int token, int split) const {
    const int first = first_item_[size_t(token)];
    const AttentionItem& item = items_[size_t(first)];
    const int row = token - item.token0;
    if (item.is_final()) return {first, row};
    const int from_first = split - item.first_split;
    return {first + from_first / item.num_splits(),
            from_first % item.num_splits() * item.num_rows + row};
  }
  // A tile is one item and so many KV heads.
  int64_t kv_heads_per_tile() const { return kv_heads_per_tile_; }
  // The most rows x splits of any item.
  int64_t max_row_splits() const { return max_row_splits_; }

  static int32_t max_items(const StepLimits& limits);
  // Rows of the place of partial results, whatever the step.
  static constexpr int32_t kMaxPartialRows = 1024;
  // Rows of an item, and of an item's partial results, at most.
  static constexpr int32_t kMaxRows = 16;
  static constexpr int32_t kMaxItemPartialRows = 32;

 private:
  // Calls visit(seq, token0, num_rows, splits) for blocks of rows, in order.
  template <class Visit>
  void for_each_block(const StepInput& input, Visit visit) const;

  AttentionShape shape_;
  int num_threads_;
  std::vector<AttentionItem> items_;
  std::vector<int32_t> first_item_;  // of each token
  int64_t kv_heads_per_tile_ = 1;
  int64_t max_row_splits_ = 1;
};

}  // namespace takt
