// All that one step in flight owns: its input, its arena, its claims and results.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pool/step.h"
#include "program/attention_work.h"
#include "program/instruction.h"
#include "program/kv_pool.h"
#include "program/memory.h"
#include "program/step_input.h"
#include "program/step_profile.h"
#include "program/value.h"

namespace takt {

// What is fixed once a program is finished; shared by its step contexts.
struct ProgramPlan {
  StepLimits limits;
  StepBounds bounds;
  FieldOffset input_offset;
  int num_threads;
  Int8Tokens int8_tokens;
  int max_few_rows;  // steps with at most so many tokens and rows use the layout kFewRows
  std::vector<std::unique_ptr<Instruction>> instructions;
  std::vector<Value> values;
  std::vector<Place> places;
  std::vector<int> reuse_barriers[kNumLayouts];
  std::vector<AttentionShape> attention_shapes;
  std::vector<int32_t> max_tiles;
  size_t arena_bytes;
  std::vector<int> samples;     // instructions of type Sample
  std::vector<Link*> links;     // of the instructions, each once
  // For each instruction the next one that reads weights, after the last one the first; -1: none.
  std::vector<int> next_readers;
  std::shared_ptr<const KVPool> kv;
  size_t scratch_bytes;  // of each thread
  std::vector<Memory> scratch;
};

class StepContext final : public Step {
 public:
  explicit StepContext(const ProgramPlan& plan);

  // Times of tiles go into `profile` from now on; null: none are taken. No thread may be in this
  // context.
  void set_profile(StepProfile* profile) { profile_ = profile; }

  // Begins a step: copies the input, cuts tiles, clears claims. No thread may be in this context.
  // Throws std::invalid_argument if the input is out of bounds; the context is then unused.
  void begin(uint64_t epoch, const std::byte* step_input);

  const ProgramPlan& plan() const { return plan_; }
  const StepInput& input() const { return input_; }
  const TileGrid& grid(int instruction) const { return grids_[size_t(instruction)]; }
  const AttentionWork& attention(int shape) const { return attention_[size_t(shape)]; }
  // The number of the transfer that an instruction makes in this step.
  uint64_t transfer(int instruction) const { return transfers_[size_t(instruction)]; }
  std::byte* arena() const { return arena_.data(); }
  std::byte* at_place(int place) const {
    return arena_.data() + plan_.places[size_t(place)].at[layout_];
  }
  std::byte* result(int instruction, int tile) const { return control_.result(instruction, tile); }

  int reuse_barrier(int instruction) const override {
    return plan_.reuse_barriers[layout_][size_t(instruction)];
  }
  bool writes_kv(int instruction) const override {
    return plan_.instructions[size_t(instruction)]->writes_kv();
  }
  std::byte* place(int) const override { return arena_.data(); }
  std::byte* stage(int thread, int instruction, int tile) override;
  void unstage(int thread) override;
  void run(int thread, int instruction, int tile, std::byte* where) override;
  int64_t redo_after_ns(int instruction) const override;
  void fetch_ahead(int thread, int instruction) override;
  // Where the thread that runs this tile most likely reads its next weights.
  const std::byte* next_weights(int instruction, int tile) const;
  StepControl<RealSync>& control() override { return control_; }
  const StepControl<RealSync>& control() const { return control_; }

 private:
  // What the cut of a step into tiles depends on, besides the attention's items.
  struct BatchShape {
    int num_tokens = 0;
    int num_rows = 0;
    bool has_block_copies = false;

    bool operator==(const BatchShape&) const = default;
  };

  void cut_tiles();

  // How far a thread has asked for the weights of its next instruction, while it waited.
  struct alignas(64) Fetch {
    int instruction = -1;  // whose weights
    int tile = 0;
    int piece = 0;
    size_t offset = 0;
    int64_t bytes_left = 0;
  };

  // A thread's private memory for results of tiles it executed again.
  struct alignas(64) Staging {
    size_t used = 0;
    size_t last = 0;  // where `stage` last began
  };

  const ProgramPlan& plan_;
  StepProfile* profile_ = nullptr;
  StepInput input_;
  ArenaLayout layout_ = kManyRows;
  std::vector<AttentionWork> attention_;
  BatchShape batch_shape_;  // that grids_ were made for
  std::vector<TileGrid> grids_;
  std::vector<int32_t> num_tiles_;
  std::vector<uint64_t> transfers_;
  StepControl<RealSync> control_;
  Memory arena_;
  Memory staging_memory_;
  std::vector<Staging> staging_;
  std::vector<Fetch> fetches_;
};

}  // namespace takt
