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

// What a waiting thread asks for: a part of the second-level cache, in small pieces so that it sees
// soon what it waits for.
constexpr int64_t kMaxFetchBytes = 256 << 10;
constexpr size_t kFetchLine = 64;
constexpr int kFetchLines = 4;

}  // namespace

StepContext::StepContext(const ProgramPlan& plan)
    : plan_(plan),
      input_(plan.limits, plan.input_offset, plan.int8_tokens),
      grids_(plan.instructions.size()),
      num_tiles_(plan.instructions.size()),
      transfers_(plan.instructions.size()),
      control_(plan.max_tiles, plan.num_threads),
      arena_(plan.arena_bytes + 64),  // never empty: its address marks results in place
      staging_memory_(kStagingBytes * size_t(plan.num_threads)),
      staging_(size_t(plan.num_threads)),
      fetches_(size_t(plan.num_threads)) {
  for (const AttentionShape& shape : plan.attention_shapes) {
    attention_.emplace_back(shape, plan.limits, plan.num_threads);
  }
}

void StepContext::begin(uint64_t epoch, const std::byte* step_input) {
  input_.load(step_input, plan_.bounds);
  const bool few =
      input_.num_tokens() <= plan_.max_few_rows && input_.num_rows() <= plan_.max_few_rows;
  layout_ = few ? kFewRows : kManyRows;
  const BatchShape shape = {input_.num_tokens(), input_.num_rows(), input_.num_block_copies() > 0};
  bool is_like_before = shape == batch_shape_;
  for (AttentionWork& work : attention_) is_like_before &= !work.build(input_);
  if (!is_like_before) cut_tiles();
  batch_shape_ = shape;
  if (!plan_.links.empty()) {
    for (size_t i = 0; i < grids_.size(); ++i) {
      Link* link = plan_.instructions[i]->link();
      if (link != nullptr && num_tiles_[i] > 0) transfers_[i] = link->next_transfer();
    }
  }
  for (Staging& staging : staging_) staging = {};
  for (Fetch& fetch : fetches_) fetch = {};
  control_.reset(epoch, num_tiles_);
}

void StepContext::cut_tiles() {
  for (size_t i = 0; i < grids_.size(); ++i) {
    grids_[i] = plan_.instructions[i]->grid(*this);
    num_tiles_[i] = grids_[i].num_tiles();
  }
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

void StepContext::fetch_ahead(int thread, int instruction) {
  Fetch& fetch = fetches_[size_t(thread)];
  const int reader = plan_.next_readers[size_t(instruction)];
  if (reader < 0) return;
  const int segment = control_.segment_of_thread(thread);
  if (fetch.instruction != reader) {
    fetch = {.instruction = reader,
             .tile = control_.first_tile(reader, segment),
             .bytes_left = kMaxFetchBytes};
  }
  if (fetch.bytes_left <= 0) return;
  if (fetch.tile >= control_.first_tile(reader, segment + 1)) {
    fetch.bytes_left = 0;
    return;
  }
  const WeightMemory weights =
      plan_.instructions[size_t(reader)]->weights(grid(reader), fetch.tile);
  const std::span<const std::byte> piece = weights.pieces[fetch.piece];
  for (int line = 0; line < kFetchLines && fetch.offset < piece.size(); ++line) {
    __builtin_prefetch(piece.data() + fetch.offset, 0, 2);  // into the second-level cache
    fetch.offset += kFetchLine;
  }
  fetch.bytes_left -= kFetchLines * int64_t(kFetchLine);
  if (fetch.offset < piece.size()) return;
  fetch.offset = 0;
  fetch.piece = 1 - fetch.piece;
  if (fetch.piece == 0) ++fetch.tile;
}

const std::byte* StepContext::next_weights(int instruction, int tile) const {
  const int segment = control_.segment_of_tile(instruction, tile);
  const auto first_of = [&](int reader, int of_tile) {
    return plan_.instructions[size_t(reader)]->weights(grid(reader), of_tile).pieces[0].data();
  };
  if (tile + 1 < control_.first_tile(instruction, segment + 1)) {
    return first_of(instruction, tile + 1);
  }
  const int reader = plan_.next_readers[size_t(instruction)];
  if (reader < 0) return nullptr;
  const int first = control_.first_tile(reader, segment);
  return first < control_.first_tile(reader, segment + 1) ? first_of(reader, first) : nullptr;
}

}  // namespace takt
