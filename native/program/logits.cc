#include "program/logits.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/sampling.h"
#include "program/product.h"
#include "program/rows.h"
#include "program/step_context.h"
#include "program/tiling.h"

namespace takt {

int32_t LogitsBlock::num_rows(const StepContext& step) const {
  return std::clamp(step.input().num_rows() - first, 0, max_rows);
}

Logits::Logits(int num_threads, LogitsBlock block, int x, std::shared_ptr<const PackedWeight> head,
               float softcap, int output)
    : num_threads_(num_threads),
      block_(block),
      x_(x),
      head_(std::move(head)),
      softcap_(softcap) {
  outputs = {output};
}

TileGrid Logits::grid_for(int32_t rows) const {
  return product_grid(rows, head_->rows(), head_->cols(), kHalfGroup, num_threads_);
}

TileGrid Logits::grid(const StepContext& step) const { return grid_for(block_.num_rows(step)); }

int32_t Logits::max_tiles() const {
  return most_tiles(block_.max_rows, [&](int32_t rows) { return grid_for(rows); });
}

void Logits::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const RowTarget out(tile, outputs[0], range);
  const int32_t* tokens = tile.step.input().row_tokens() + block_.first + range.row0;
  const ProductRows x(tile, RowSource(tile.step, x_), *head_, range.num_rows(),
                      [&](int i) { return tokens[i]; });
  linear(*head_, range.col0, range.col1, x.rows(), out.f32(range.row0), out.f32_stride(),
         tile.step.next_weights(tile.instruction, tile.tile));
  if (softcap_ == 0.0f) return;
  for (int row = range.row0; row < range.row1; ++row) {
    float* logits = out.f32(row);
    for (int64_t i = 0; i < range.num_cols(); ++i) {
      logits[i] = softcap_ * std::tanh(logits[i] / softcap_);
    }
  }
}

WeightMemory Logits::weights(const TileGrid& grid, int tile) const {
  const TileRange range = tile_range(grid, tile);
  return {{head_->memory_of_rows(range.col0, range.col1)}};
}

size_t Logits::scratch_bytes() const {
  return ProductRows::scratch_bytes(*head_, kMaxProductRows);
}

size_t Logits::staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const {
  return staged_value_bytes(plan, outputs, grid);
}

int64_t Logits::tile_work(const StepContext&, const TileGrid& grid) const {
  const int64_t softcap_work = softcap_ == 0.0f ? 0 : 32;
  return grid.rows_per_tile * grid.cols_per_tile * (head_->cols() + softcap_work);
}

size_t SampledRow::bytes(const StepLimits& limits) {
  return align64(sizeof(SampledRow) + size_t(limits.max_logprobs) * 8);
}

int32_t* SampledRow::top_tokens(std::byte* row) {
  return reinterpret_cast<int32_t*>(row + sizeof(SampledRow));
}

float* SampledRow::top_logprobs(std::byte* row, const StepLimits& limits) {
  return reinterpret_cast<float*>(row + sizeof(SampledRow) + size_t(limits.max_logprobs) * 4);
}

Sample::Sample(const StepLimits& limits, LogitsBlock block, int logits, int64_t vocab_size,
               bool holds_best, int place)
    : limits_(limits),
      block_(block),
      logits_(logits),
      vocab_size_(vocab_size),
      holds_best_(holds_best),
      place_(place) {}

TileGrid Sample::grid(const StepContext& step) const { return {block_.num_rows(step), 1, 1, 1}; }

std::byte* Sample::target(const StepContext& step, int row, std::byte* where) const {
  return where == step.arena() ? step.at_place(place_) + size_t(row) * SampledRow::bytes(limits_)
                               : where;
}

std::byte* Sample::result(const StepContext& step, int instruction, int row) const {
  return target(step, row, step.result(instruction, row));
}

SampleParams sample_params(const StepInput& in, int row) {
  const int32_t *history = in.history_start() + row, *bias = in.bias_start() + row;
  const size_t num_history = size_t(history[1] - history[0]), num_bias = size_t(bias[1] - bias[0]);
  return {
      .target = in.row_targets()[row],
      .num_logprobs = in.row_num_logprobs()[row],
      .temperature = in.row_temperature()[row],
      .top_k = in.row_top_k()[row],
      .top_p = in.row_top_p()[row],
      .min_p = in.row_min_p()[row],
      .repetition_penalty = in.row_repetition_penalty()[row],
      .presence_penalty = in.row_presence_penalty()[row],
      .frequency_penalty = in.row_frequency_penalty()[row],
      .seed = in.row_seed()[row],
      .choice = in.row_choice()[row],
      .position = in.row_position()[row],
      .history_token = {in.history_token() + history[0], num_history},
      .history_count = {in.history_count() + history[0], num_history},
      .bias_token = {in.bias_token() + bias[0], num_bias},
      .bias_value = {in.bias_value() + bias[0], num_bias},
  };
}

void Sample::run(TileRun tile) const noexcept {
  const SampleParams params = sample_params(tile.step.input(), block_.first + tile.tile);
  std::byte* to = target(tile.step, tile.tile, tile.where);
  SampleResult result{.token = 0,
                      .logprob = 0,
                      .rank = 0,
                      .top_tokens = SampledRow::top_tokens(to),
                      .top_logprobs = SampledRow::top_logprobs(to, limits_)};
  float* gathered = tile.scratch.take<float>(vocab_size_);
  const float* logits = RowSource(tile.step, logits_).f32(tile.tile, gathered);
  if (holds_best_ && asks_best_only(params)) {
    *reinterpret_cast<SampledRow*>(to) = {std::bit_cast<int32_t>(logits[0]), 0, 0};
    return;
  }
  sample_row(logits, vocab_size_, params,
             tile.scratch.take<std::byte>(int64_t(sample_scratch_bytes(vocab_size_))), &result);
  *reinterpret_cast<SampledRow*>(to) = {result.token, result.logprob, result.rank};
}

size_t Sample::scratch_bytes() const {
  return Scratch::bytes<float>(vocab_size_) +
         Scratch::bytes<std::byte>(int64_t(sample_scratch_bytes(vocab_size_)));
}

size_t Sample::staged_bytes(const ProgramPlan&, const TileGrid&) const {
  return SampledRow::bytes(limits_);
}

// Sorting the whole vocabulary is the longest that a row may take.
int64_t Sample::tile_work(const StepContext&, const TileGrid&) const { return 80 * vocab_size_; }

}  // namespace takt
