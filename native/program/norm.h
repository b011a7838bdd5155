// Residual addition and RMS normalisation of whole rows.
#pragma once
#include <memory>
#include <vector>

#include "program/instruction.h"
#include "program/step_input.h"

namespace takt {

using FloatVector = std::vector<float>;
using SharedVector = std::shared_ptr<const FloatVector>;

// Normalises r = residual + y into `normed` and keeps r as `sum`. y is x, or x normalised with
// `post_weight` where that is given. Without a residual r is y; without either it is x, which the
// caller reads from x itself: then there is no `sum`.
class Norm final : public Instruction {
 public:
  struct Operands {
    int x;
    int residual;  // or kNoValue
    SharedVector weight;
    SharedVector post_weight;  // or null
    float eps;
    int64_t width;
  };
  Norm(const StepLimits& limits, int num_threads, Operands operands, int normed, int sum);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;

 private:
  int64_t max_num_tokens_;
  int num_threads_;
  Operands operands_;
  int normed_;
  int sum_;
};

}  // namespace takt
