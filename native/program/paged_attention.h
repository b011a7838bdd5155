// Attention over the paged cache: partial results by splits of the context, then rows.
#pragma once
#include <memory>

#include "kernels/attention.h"
#include "program/attention_work.h"
#include "program/instruction.h"
#include "program/kv_pool.h"

namespace takt {

struct AttentionOperands {
  int q;  // [num_tokens, num_heads * head_dim]
  int layer;
  float scale;
  float softcap;    // 0: off
  int shape_index;  // of ProgramPlan::attention_shapes
  AttentionShape shape;
};

// Tiles of the step's attention work (attention_work.h). A tile's result, for each of its KV heads:
// final heads [num_rows, heads_per_kv, head_dim], or partial ones
// [num_splits, num_rows, heads_per_kv, partial_floats].
class AttentionSplits final : public Instruction {
 public:
  // Final rows go to `rows_place` [num_tokens, num_heads * head_dim], partial ones to
  // `partials_place` [kMaxPartialRows, num_heads, partial_floats].
  AttentionSplits(const StepLimits& limits, AttentionOperands operands,
                  std::shared_ptr<const KVPool> kv, int rows_place, int partials_place);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;

  // Completed results: of the heads that share `kv_head`, for a row of an item.
  const float* result(const StepContext& step, int instruction, int item, int row,
                      int64_t kv_head) const;

 private:
  struct Rows {
    float* first;
    int64_t stride;  // floats from one row to the next
  };
  Rows rows(const StepContext& step, const AttentionItem& item, std::byte* where,
            int64_t first_kv_head, int64_t kv_head) const;
  int64_t row_floats(const AttentionItem& item) const;
  void run_head(const TileRun& tile, const AttentionItem& item, int64_t kv_head,
                bool another_follows, Rows out) const;
  template <class SplitInto>
  void merge_splits(const AttentionItem& item, Scratch scratch, Rows out,
                    SplitInto split_into) const;

  StepLimits limits_;
  AttentionOperands operands_;
  std::shared_ptr<const KVPool> kv_;
  int rows_place_;
  int partials_place_;
};

// Combines partial results in the order of the context; gives whole rows.
class AttentionCombine final : public Instruction {
 public:
  AttentionCombine(const StepLimits& limits, int num_threads, AttentionOperands operands,
                   const AttentionSplits* splits, int splits_instruction, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;

 private:
  void combine_heads(const StepContext& step, int row, int64_t kv_head, float* merged,
                     float* out) const;

  StepLimits limits_;
  int num_threads_;
  AttentionOperands operands_;
  const AttentionSplits* splits_;
  int splits_instruction_;
};

}  // namespace takt
