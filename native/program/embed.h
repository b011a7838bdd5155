// The embedding: the first instruction of a program.
#pragma once
#include <memory>

#include "kernels/linear.h"
#include "program/instruction.h"
#include "program/step_input.h"

namespace takt {

// Rows of a table for the step's token ids, times a scale. The table's first row is that of token
// `first_token`; tokens that it has no row for give zeros.
class Embed final : public Instruction {
 public:
  Embed(const StepLimits& limits, int num_threads, std::shared_ptr<const PackedWeight> table,
        float scale, int32_t first_token, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;

 private:
  int64_t max_num_tokens_;
  int num_threads_;
  std::shared_ptr<const PackedWeight> table_;
  float scale_;
  int32_t first_token_;
};

}  // namespace takt
