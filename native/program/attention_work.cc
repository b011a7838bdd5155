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
                             int num_threads)
    : shape_(shape), num_threads_(num_threads), first_item_(size_t(limits.max_num_tokens)) {
  items_.reserve(size_t(max_items(limits)));
}

int32_t AttentionWork::max_items(const StepLimits& limits) {
  // Blocks of rows, and one item per partial row at most.
  const int64_t blocks = limits.max_num_seqs + (limits.max_num_tokens + kMaxRows - 1) / kMaxRows;
  return int32_t(std::min(blocks, limits.max_num_tokens)) + kMaxPartialRows;
}

template <class Visit>
void AttentionWork::for_each_block(const StepInput& input, Visit visit) const {
  for (int32_t s = 0; s < input.num_seqs(); ++s) {
    const int32_t end = input.query_start()[s + 1];
    for (int32_t t = input.query_start()[s]; t < end;) {
      const int32_t* p = input.positions();
      const int32_t num_rows = std::min(kMaxRows, end - t);
      visit(s, t, num_rows,
            SplitRange{visible_splits(p[t], shape_.window).first,
                       visible_splits(p[t + num_rows - 1], 0).last});
      t += num_rows;
    }
  }
}

bool AttentionWork::build(const StepInput& input) {
  const int num_items_before = num_items();
  const int64_t heads_before = kv_heads_per_tile_;
  items_.clear();
  int64_t total = 0;
  for_each_block(input, [&](int32_t, int32_t, int32_t rows, SplitRange splits) {
    total += int64_t{rows} * (splits.last - splits.first);
  });
  const int64_t wanted = kTilesPerThread * num_threads_;
  // The heads of a block lie side by side in memory. A tile takes all of them where there are
  // splits enough: what the hardware fetches beyond one head is then the next one's.
  const bool heads_together = total >= 2 * wanted;
  // An item with more than this of the step's rows x splits would keep its thread too long.
  const int64_t share = total * (heads_together ? 1 : shape_.num_kv_heads) / wanted;
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
    // Half a share, so that the last item of the step is short beside the whole.
    const auto most = int32_t(std::min<int64_t>(share / 2, kMaxItemPartialRows) / rows);
    const int32_t each = std::clamp(most, 1, num_splits - 1);
    max_row_splits_ = std::max<int64_t>(max_row_splits_, rows * each);
    for (int32_t split = splits.first; split < splits.last; split += each) {
      const int32_t last = std::min(split + each, splits.last);
      items_.push_back({seq, token0, rows, split, last, partial_rows});
      partial_rows += rows * (last - split);
    }
  });
  const bool are_enough = heads_together && num_items() >= wanted;
  kv_heads_per_tile_ = are_enough ? shape_.num_kv_heads : 1;
  return num_items() != num_items_before || kv_heads_per_tile_ != heads_before;
}

}  // namespace takt
