// Copies of whole KV blocks, before anything else in a step.
#pragma once
#include <memory>

#include "program/instruction.h"
#include "program/kv_pool.h"

namespace takt {

// A tile is one layer: it makes all of the step's copies of that layer's KV group, in order, so
// that a later copy may read what an earlier one wrote.
class BlockCopy final : public Instruction {
 public:
  explicit BlockCopy(std::shared_ptr<const KVPool> kv) : kv_(std::move(kv)) {}

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override { return kv_->num_layers(); }
  void run(TileRun tile) const noexcept override;
  size_t staged_bytes(const ProgramPlan&, const TileGrid&) const override { return 0; }
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;
  bool writes_kv() const override { return true; }
  // A later copy may write what an earlier one has read.
  bool may_redo() const override { return false; }

 private:
  std::shared_ptr<const KVPool> kv_;
};

}  // namespace takt
