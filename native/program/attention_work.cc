#include "program/attention_work.h"

#include <algorithm>

#include "kernels/attention.h"

namespace takt {
namespace {

// Tiles for each thread, so that the last ones end at about the same time.
constexpr int64_t kTilesPerThread = 4;

}  // namespace

SplitRange visible_splits(int64_t position, int64_t window) {
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  return {int32_t(first / kSplit), int32_t(position / kSplit + 1)};
}

AttentionWork::AttentionWork(const AttentionShape& shape, const StepLimits& limits,
                             int64_t block_size, int num_threads)
    : shape_(shape), num_threads_(num_threads), first_item_(size_t(limits.max_num_tokens)) {
  items_.reserve(size_t(max_items(limits, block_size)));
}

int32_t AttentionWork::max_items(const StepLimits& limits, int64_t block_size) {
  // Blocks of rows (short ones where contexts are long), and one item per partial row at most.
  const int64_t splits = (limits.max_blocks_per_seq * block_size + kSplit - 1) / kSplit;
  const int64_t rows = rows_per_item(int32_t(splits));
  const int64_t blocks = limits.max_num_seqs + (limits.max_num_tokens + rows - 1) / rows;
  return int32_t(std::min(blocks, limits.max_num_tokens)) + kMaxPartialRows;
}

int32_t AttentionWork::rows_per_item(int32_t num_splits) {
  return std::clamp(kMaxRowSplits / std::max(num_splits, 1), 1, kMaxRows);
}

template <class Visit>
void AttentionWork::for_each_block(const StepInput& input, Visit visit) const {
  for (int32_t s = 0; s < input.num_seqs(); ++s) {
    const int32_t end = input.query_start()[s + 1];
    for (int32_t t = input.query_start()[s]; t < end;) {
      // The last token of the block sees the most; its position bounds the block's splits.
      const int32_t* p = input.positions();
      const int32_t first = visible_splits(p[t], shape_.window).first;
      const int32_t longest = std::min(t + kMaxRows, end) - 1;
      const int32_t rows =
          rows_per_item(visible_splits(p[longest], shape_.window).last - first);
      const int32_t num_rows = std::min(rows, end - t);
      visit(s, t, num_rows, SplitRange{first, visible_splits(p[t + num_rows - 1], 0).last});
      t += num_rows;
    }
  }
}

void AttentionWork::build(const StepInput& input) {
  items_.clear();
  int64_t num_blocks = 0, total = 0;
  for_each_block(input, [&](int32_t, int32_t, int32_t rows, SplitRange splits) {
    ++num_blocks;
    total += int64_t{rows} * (splits.last - splits.first);
  });
  const int64_t wanted = kTilesPerThread * num_threads_;
  // An item with more than this of the step's rows x splits would keep its thread too long.
  const int64_t share = total * shape_.num_kv_heads / wanted;
  int32_t partial_rows = 0;
  max_row_splits_ = 1;
  for_each_block(input, [&](int32_t seq, int32_t token0, int32_t rows, SplitRange splits) {
    const int32_t num_splits = splits.last - splits.first;
    const int32_t needed = rows * num_splits;
    for (int32_t i = 0; i < rows; ++i) first_item_[size_t(token0 + i)] = num_items();
    if (num_splits == 1 || needed <= share || partial_rows + needed > kMaxPartialRows) {
      items_.push_back({seq, token0, rows, splits.first, splits.last, -1});
      max_row_splits_ = std::max<int64_t>(max_row_splits_, needed);
      return;
    }
    for (int32_t split = splits.first; split < splits.last; ++split) {
      items_.push_back({seq, token0, rows, split, split + 1, partial_rows});
      partial_rows += rows;
    }
    max_row_splits_ = std::max<int64_t>(max_row_splits_, rows);
  });
  kv_heads_per_tile_ = num_items() >= 2 * wanted ? shape_.num_kv_heads : 1;
}

}  // namespace takt
