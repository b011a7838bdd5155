#include "program/step_context.h"

#include "parallel/link.h"
#include "pool/futex.h"

namespace takt {
namespace {

// Tiles take tens of microseconds. A thread that is late by less has most likely not lost its core.
constexpr int64_t kRedoAfterNs = 30'000;
// A slow machine's operations per microsecond and thread: an estimate for tiles of an instruction
// that the waiting thread has not run itself.
constexpr int64_t kWorkPerUs = 4'000;
// Each thread's room for results of tiles it executed again; when it is full, the thread waits
// instead. A tile's result has some 100 KB at most, and a step few laggards.
constexpr size_t kStagingBytes = size_t{4} << 20;

}  // namespace

StepContext::StepContext(const ProgramPlan& plan)
    : plan_(plan),
      input_(plan.limits, plan.input_offset),
      grids_(plan.instructions.size()),
      num_tiles_(plan.instructions.size()),
      transfers_(plan.instructions.size()),
      control_(plan.max_tiles),
      arena_(plan.arena_bytes + 64),  // never empty: its address marks results in place
      staging_memory_(kStagingBytes * size_t(plan.num_threads)),
      staging_(size_t(plan.num_threads)) {
  for (const AttentionShape& shape : plan.attention_shapes) {
    attention_.emplace_back(shape, plan.limits, plan.num_threads);
  }
}

void StepContext::begin(uint64_t epoch, const std::byte* step_input) {
  input_.load(step_input, plan_.bounds);
  const bool few =
      input_.num_tokens() <= plan_.max_few_rows && input_.num_rows() <= plan_.max_few_rows;
  layout_ = few ? kFewRows : kManyRows;
  for (AttentionWork& work : attention_) work.build(input_);
  for (size_t i = 0; i < grids_.size(); ++i) {
    grids_[i] = plan_.instructions[i]->grid(*this);
    num_tiles_[i] = grids_[i].num_tiles();
    Link* link = plan_.instructions[i]->link();
    if (link != nullptr && num_tiles_[i] > 0) transfers_[i] = link->next_transfer();
  }
  for (Staging& staging : staging_) staging = {};
  control_.reset(epoch, num_tiles_);
}

std::byte* StepContext::stage(int thread, int instruction, int) {
  if (!plan_.instructions[size_t(instruction)]->may_redo()) return nullptr;
  Staging& staging = staging_[size_t(thread)];
  const size_t bytes =
      align64(plan_.instructions[size_t(instruction)]->staged_bytes(plan_, grid(instruction)));
  if (staging.used + bytes > kStagingBytes) return nullptr;
  staging.last = staging.used;
  staging.used += bytes;
  return staging_memory_.data() + size_t(thread) * kStagingBytes + staging.last;
}

void StepContext::unstage(int thread) {
  staging_[size_t(thread)].used = staging_[size_t(thread)].last;
}

void StepContext::run(int thread, int instruction, int tile, std::byte* where) {
  const Instruction& work = *plan_.instructions[size_t(instruction)];
  const TileRun tile_run{*this, instruction, tile, where,
                         Scratch(plan_.scratch[size_t(thread)].data(), plan_.scratch_bytes)};
  if (profile_ == nullptr) [[likely]] {
    work.run(tile_run);
    return;
  }
  const int64_t start_ns = now_ns();
  work.run(tile_run);
  profile_->record(thread, instruction, start_ns, now_ns());
}

int64_t StepContext::redo_after_ns(int instruction) const {
  const int64_t work =
      plan_.instructions[size_t(instruction)]->tile_work(*this, grid(instruction));
  return kRedoAfterNs + work * 1000 / kWorkPerUs;
}

}  // namespace takt
