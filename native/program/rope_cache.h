// Head norms, rotary embedding, and writing of K and V to the cache.
#pragma once
#include <memory>

#include "program/instruction.h"
#include "program/kv_pool.h"
#include "program/norm.h"

namespace takt {

class RopeCache final : public Instruction {
 public:
  struct Operands {
    int qkv;  // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
    int64_t num_heads;
    SharedVector cos;  // [max_position, head_dim / 2]
    SharedVector sin;
    SharedVector q_norm;  // [head_dim] or null
    SharedVector k_norm;
    float norm_eps;
    int layer;
  };
  // `after` is the instruction that copies blocks: a thread still in it could overwrite new K/V.
  RopeCache(const StepLimits& limits, int num_threads, Operands operands,
            std::shared_ptr<const KVPool> kv, int after, int q_output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;
  bool writes_kv() const override { return true; }
  int order_after() const override { return after_; }

 private:
  TileGrid grid_for(int32_t rows) const;
  int64_t max_kv_heads() const;  // of a tile
  // Rotates the heads of one token into `to`, normalised if `norm` is given.
  void rotate(const float* heads, int64_t num_heads, const SharedVector& norm, int32_t position,
              float* to) const;

  int64_t max_num_tokens_;
  int num_threads_;
  Operands operands_;
  std::shared_ptr<const KVPool> kv_;
  int after_;
  int64_t num_kv_heads_;
  int64_t head_dim_;
  int64_t q_width_;  // of the query heads that share a KV head
};

}  // namespace takt
