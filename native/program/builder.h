// Builds a program: one call per operator of takt.ops.base, in the order of the model.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/linear.h"
#include "program/collective.h"
#include "program/kv_pool.h"
#include "program/logits.h"
#include "program/norm.h"
#include "program/paged_attention.h"
#include "program/rope_cache.h"
#include "program/step_context.h"

namespace takt {

using SharedWeight = std::shared_ptr<const PackedWeight>;

// Rows of logits that are held at a time.
int32_t logits_block_rows(const StepLimits& limits, int64_t vocab_size);

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
                 std::shared_ptr<const KVPool> kv, Int8Tokens int8_tokens = Int8Tokens::kAll);
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  // `table` holds rows from `first_token` on of a vocabulary of `vocab_size` (0: all that there is).
  int embed(SharedWeight table, float scale, int64_t first_token = 0, int64_t vocab_size = 0);
  // Returns (normed, sum); `residual` may be kNoValue and `post_weight` null.
  std::pair<int, int> norm(int x, SharedVector weight, float eps, int residual,
                           SharedVector post_weight);
  int linear(int x, SharedWeight weight);
  int rope_cache(RopeCache::Operands operands);
  int attention(int q, const AttentionOptions& options);
  int gated_mlp(int x, SharedWeight gate_up, SharedWeight down, Gate kind);
  int logits(int x, SharedWeight head, float softcap);
  void sample(int logits);

  // Between ranks; see program/collective.h. `gather` has logits that hold a rank's columns of the
  // vocabulary sampled by rank 0 of the group, from all columns.
  int all_reduce(int x, SharedCommunicator group);
  int gather(int logits, SharedCommunicator group, std::vector<int64_t> borders);
  void send(int x, SharedChannel channel);
  int receive(int64_t width, SharedChannel channel);

  // Instructions that the calls so far have made.
  int num_instructions() const { return int(plan_->instructions.size()); }

  // Fixes places and sizes; the builder is spent.
  std::unique_ptr<ProgramPlan> finish(FieldOffset input_offset);

 private:
  // A value that the next instruction writes.
  int new_value(int64_t width, int64_t max_rows_few, int64_t max_rows_many);
  int new_token_value(int64_t width);
  int new_place(size_t bytes_few, size_t bytes_many);
  // The next instruction reads `value` in f32.
  void read(int value);
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
    SharedCommunicator group;      // null: `head` has the whole vocabulary
    std::vector<int64_t> borders;  // of the ranks' columns

    int64_t vocab_size() const { return group != nullptr ? borders.back() : head->rows(); }
  };
  void sample_block(const PendingLogits& from, LogitsBlock block);
  void check_slot(size_t slot_bytes, int64_t rows, int64_t width) const;

  StepLimits limits_;
  int num_threads_;
  int64_t few_rows_;
  std::shared_ptr<const KVPool> kv_;
  std::unique_ptr<ProgramPlan> plan_;
  std::vector<PendingLogits> pending_logits_;
};

}  // namespace takt
