// Builds a program: one call per operator of takt.ops.base, in the order of the model.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/linear.h"
#include "program/kv_pool.h"
#include "program/logits.h"
#include "program/norm.h"
#include "program/paged_attention.h"
#include "program/rope_cache.h"
#include "program/step_context.h"

namespace takt {

using SharedWeight = std::shared_ptr<const PackedWeight>;

struct AttentionOptions {
  int64_t num_heads;
  float scale;
  float softcap;   // 0: off
  int64_t window;  // 0: none
  int layer;
};

// Operators take and return values by number. All throw std::invalid_argument with a sentence if
// shapes do not agree.
class ProgramBuilder {
 public:
  // `kv` may be null for a program without attention.
  ProgramBuilder(const StepLimits& limits, int64_t max_position, int num_threads,
                 std::shared_ptr<const KVPool> kv);
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  int embed(SharedWeight table, float scale);
  // Returns (normed, sum); `residual` may be kNoValue and `post_weight` null.
  std::pair<int, int> norm(int x, SharedVector weight, float eps, int residual,
                           SharedVector post_weight);
  int linear(int x, SharedWeight weight);
  int rope_cache(RopeCache::Operands operands);
  int attention(int q, const AttentionOptions& options);
  int gated_mlp(int x, SharedWeight gate_up, SharedWeight down, Gate kind);
  int logits(int x, SharedWeight head, float softcap);
  void sample(int logits);

  // Instructions that the calls so far have made.
  int num_instructions() const { return int(plan_->instructions.size()); }

  // Fixes places and sizes; the builder is spent.
  std::unique_ptr<ProgramPlan> finish(FieldOffset input_offset);

 private:
  // A value that the next instruction writes.
  int new_value(int64_t width, int64_t max_rows_few, int64_t max_rows_many);
  int new_token_value(int64_t width);
  int new_place(size_t bytes_few, size_t bytes_many);
  // The next instruction reads `value` in the given forms.
  void read(int value, bool f32, bool q8);
  void read_for_product(int x, const SharedWeight& weight);
  const Value& value(int number, const char* what) const;
  void check_width(int number, int64_t width, const char* what) const;
  void require_kv() const;
  int shape_index(const AttentionShape& shape);
  void place_values();
  void add(std::unique_ptr<Instruction> instruction);

  struct PendingLogits {
    int x;
    SharedWeight head;
    float softcap;
  };

  StepLimits limits_;
  int num_threads_;
  int64_t few_rows_;
  std::shared_ptr<const KVPool> kv_;
  std::unique_ptr<ProgramPlan> plan_;
  std::vector<PendingLogits> pending_logits_;
};

}  // namespace takt
