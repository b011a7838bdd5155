// A finished program: runs steps on a pool.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include "pool/pool.h"
#include "program/step_context.h"

namespace takt {

class Program {
 public:
  Program(std::shared_ptr<Pool> pool, std::unique_ptr<ProgramPlan> plan,
          const FieldOffset& output_offset);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int num_instructions() const { return int(plan_->instructions.size()); }
  int num_threads() const { return plan_->num_threads; }
  size_t arena_bytes() const { return plan_->arena_bytes; }

  // Runs a whole step: fills the StepOutput at `step_output` from the StepInput at `step_input`.
  // Allocates nothing. Throws std::invalid_argument for an input out of bounds (nothing has run)
  // and std::runtime_error once the pool was aborted.
  void run(const std::byte* step_input, std::byte* step_output);

  // The same in two parts: after `start` the pool's other threads are at it, and the caller may do
  // something else before it joins them in `finish`. Both throw what `run` does. A step that was
  // started and not finished is completed by the next one's start.
  void start(const std::byte* step_input);
  void finish(std::byte* step_output);

  // The same in pieces, for running operators one by one: begin, then execute every range of
  // instructions in order, then end. A step that was begun and not ended is forgotten by the next.
  void begin(const std::byte* step_input);
  void execute(int first, int end);
  void end(std::byte* step_output);

  // From now on each step's times are kept until the next one begins; a step then ends only when
  // every thread has left it. Off, it costs one test per tile. Not while a step is in progress.
  void set_profiling(bool is_on);
  // Of the step that ended last; null while profiling is off.
  const StepProfile* profile() const { return profile_.get(); }

 private:
  void begin_step(const std::byte* step_input);
  void execute_range(int first, int end);
  void check_links();
  void end_step(std::byte* step_output);
  StepContext* free_context();
  void write_rows(std::byte* step_output) const;

  static constexpr int kNumContexts = 4;

  std::shared_ptr<Pool> pool_;
  std::unique_ptr<ProgramPlan> plan_;
  std::array<std::unique_ptr<StepContext>, kNumContexts> contexts_;
  StepContext* current_ = nullptr;  // between begin and end
  std::optional<Pool::Use> use_;    // between start and finish
  std::unique_ptr<StepProfile> profile_;
  int64_t start_ns_ = 0;
  size_t header_, token_ids_, logprobs_, ranks_, top_token_ids_, top_logprobs_;
};

}  // namespace takt
