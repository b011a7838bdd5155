// Rows of logits, a bounded number at a time, and the sampling of each.
#pragma once
#include <memory>

#include "kernels/linear.h"
#include "kernels/sampling.h"
#include "program/instruction.h"
#include "program/step_input.h"

namespace takt {

// A block of the step's rows of logits: [first, first + max_rows), as far as the step has them.
struct LogitsBlock {
  int32_t first;
  int32_t max_rows;

  int32_t num_rows(const StepContext& step) const;
};

// Logits of a block's rows from the hidden states of the tokens they belong to.
class Logits final : public Instruction {
 public:
  Logits(int num_threads, LogitsBlock block, int x, std::shared_ptr<const PackedWeight> head,
         float softcap, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;
  bool reads_weights() const override { return true; }
  WeightMemory weights(const TileGrid& grid, int tile) const override;

 private:
  TileGrid grid_for(int32_t rows) const;

  int num_threads_;
  LogitsBlock block_;
  int x_;
  std::shared_ptr<const PackedWeight> head_;
  float softcap_;
};

// What sampling one row brings: read by the caller once the step is done. `top_tokens` and
// `top_logprobs`, max_logprobs each, follow it in memory.
struct SampledRow {
  int32_t token;
  float logprob;
  int32_t rank;

  static size_t bytes(const StepLimits& limits);
  static int32_t* top_tokens(std::byte* row);
  static float* top_logprobs(std::byte* row, const StepLimits& limits);
};

// What a step asks of one of its rows.
SampleParams sample_params(const StepInput& in, int row);

// Samples or scores a block's rows; a tile is one row. With `holds_best`, rows that ask for the
// best token only hold its number in place of logits (program/collective.h).
class Sample final : public Instruction {
 public:
  Sample(const StepLimits& limits, LogitsBlock block, int logits, int64_t vocab_size,
         bool holds_best, int place);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override { return block_.max_rows; }
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;

  const LogitsBlock& block() const { return block_; }
  // The SampledRow of a row of the block, in place or staged.
  std::byte* result(const StepContext& step, int instruction, int row) const;

 private:
  std::byte* target(const StepContext& step, int row, std::byte* where) const;

  StepLimits limits_;
  LogitsBlock block_;
  int logits_;
  int64_t vocab_size_;
  bool holds_best_;
  int place_;
};

}  // namespace takt
