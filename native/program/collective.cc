#include "program/collective.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/sampling.h"
#include "parallel/compressed_sum.h"
#include "program/rows.h"
#include "program/step_context.h"

namespace takt {
namespace {

// Rows of a lane, at least: a hand-over between cores costs as much as copying this many bytes.
constexpr int64_t kLaneBytes = 32 << 10;

// Depends on the step alone, never on this rank's threads.
TileGrid lane_grid(int32_t num_rows, int64_t width) {
  const int32_t by_lanes = (num_rows + Communicator::kMaxLanes - 1) / Communicator::kMaxLanes;
  const auto by_bytes = int32_t(std::max<int64_t>(1, kLaneBytes / (width * 4)));
  return {num_rows, std::max(by_lanes, by_bytes), width, width};
}

TileGrid whole_grid(int32_t num_rows, int64_t width) {
  return {num_rows, std::max(num_rows, 1), width, width};
}

float* floats(std::byte* slot) { return reinterpret_cast<float*>(slot); }

void copy_row(const float* from, int64_t n, float* to) {
  std::memcpy(to, from, size_t(n) * sizeof(float));
}

}  // namespace

AllReduce::AllReduce(const StepLimits& limits, SharedCommunicator group, int x, int64_t width,
                     int output)
    : max_num_tokens_(int32_t(limits.max_num_tokens)), group_(std::move(group)), x_(x), width_(width) {
  outputs = {output};
}

TileGrid AllReduce::grid(const StepContext& step) const {
  return lane_grid(step.input().num_tokens(), width_);
}

void AllReduce::run(TileRun tile) const noexcept {
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const RowTarget out(tile, outputs[0], range);
  float* row_values = tile.scratch.take<float>(width_);
  if (!group_->wait_writable(tile.step.transfer(tile.instruction))) return;
  if (group_->payload() == Payload::kF32) {
    sum_rows(tile, range, row_values, out);
  } else {
    sum_compressed_rows(tile, range, row_values, out);
  }
}

void AllReduce::sum_rows(const TileRun& tile, const TileRange& range, float* row_values,
                         const RowTarget& out) const {
  const uint64_t n = tile.step.transfer(tile.instruction);
  const RowSource x(tile.step, x_);
  float* mine = floats(group_->slot(group_->rank(), n));
  for (int row = range.row0; row < range.row1; ++row) {
    copy_row(x.f32(row, row_values), width_, mine + row * width_);
  }
  group_->publish(n, tile.tile);
  if (!group_->wait_all_published(n, tile.tile)) return;
  for (int row = range.row0; row < range.row1; ++row) {
    sum_slots(*group_, n, row_offset(row), width_, out.f32(row));
    out.finish(row);
  }
}

void AllReduce::sum_compressed_rows(const TileRun& tile, const TileRange& range, float* row_values,
                                    const RowTarget& out) const {
  const uint64_t n = tile.step.transfer(tile.instruction);
  const RowSource x(tile.step, x_);
  const auto sum = [&](int row) { return CompressedSum(*group_, n, row_offset(row), width_); };
  for (int row = range.row0; row < range.row1; ++row) sum(row).write(x.f32(row, row_values));
  group_->publish(n, tile.tile);
  if (!group_->wait_all_published(n, tile.tile)) return;
  for (int row = range.row0; row < range.row1; ++row) sum(row).sum_share(row_values);
  group_->publish_sums(n, tile.tile);
  if (!group_->wait_all_sums(n, tile.tile)) return;
  for (int row = range.row0; row < range.row1; ++row) {
    sum(row).read(out.f32(row));
    out.finish(row);
  }
}

size_t AllReduce::scratch_bytes() const {
  const int32_t most_rows = lane_grid(max_num_tokens_, width_).rows_per_tile;
  return RowTarget::scratch_bytes(most_rows, width_) + Scratch::bytes<float>(width_);
}

GatherLogits::GatherLogits(SharedCommunicator group, LogitsBlock block, int logits,
                           std::vector<int64_t> borders, int output)
    : group_(std::move(group)), block_(block), logits_(logits), borders_(std::move(borders)) {
  if (output != kNoValue) outputs = {output};
}

TileGrid GatherLogits::grid(const StepContext& step) const {
  const int32_t num_rows = block_.num_rows(step);
  const int32_t by_lanes = (num_rows + Communicator::kMaxLanes - 1) / Communicator::kMaxLanes;
  return {num_rows, std::max(by_lanes, 1), borders_.back(), borders_.back()};
}

void GatherLogits::run(TileRun tile) const noexcept {
  const StepContext& step = tile.step;
  const TileRange range = tile_range(step.grid(tile.instruction), tile.tile);
  const int rank = group_->rank();
  const uint64_t n = step.transfer(tile.instruction);
  const RowSource logits(step, logits_);
  float* gathered = tile.scratch.take<float>(num_columns(rank));
  if (!group_->wait_writable(n)) return;
  for (int row = range.row0; row < range.row1; ++row) {
    const float* columns = logits.f32(row, gathered);
    if (asks_best(step, row)) {
      *best(rank, n, row) = best_of(columns, num_columns(rank), borders_[size_t(rank)]);
    } else {
      copy_row(columns, num_columns(rank), part(rank, n, row));
    }
  }
  group_->publish(n, tile.tile);
  if (outputs.empty() || !group_->wait_all_published(n, tile.tile)) return;
  const RowTarget out(tile, outputs[0], range);
  for (int row = range.row0; row < range.row1; ++row) {
    if (asks_best(step, row)) {
      out.f32(row)[0] = std::bit_cast<float>(best_of_all(n, row));
      continue;
    }
    for (int r = 0; r < group_->num_ranks(); ++r) {
      copy_row(part(r, n, row), num_columns(r), out.f32(row) + borders_[size_t(r)]);
    }
  }
}

bool GatherLogits::asks_best(const StepContext& step, int row) const {
  return asks_best_only(sample_params(step.input(), block_.first + row));
}

float* GatherLogits::part(int rank, uint64_t n, int row) const {
  return floats(group_->slot(rank, n)) + row * num_columns(rank);
}

GatherLogits::Best* GatherLogits::best(int rank, uint64_t n, int row) const {
  return reinterpret_cast<Best*>(part(rank, n, row));
}

GatherLogits::Best GatherLogits::best_of(const float* logits, int64_t num_logits, int64_t first) {
  const int64_t at = best_token(logits, num_logits);
  // NaN is less than everything.
  const float logit = logits[at] > -INFINITY ? logits[at] : -INFINITY;
  return {logit, int32_t(first + at)};
}

// Of equal ones the first, as in a whole row.
int32_t GatherLogits::best_of_all(uint64_t n, int row) const {
  Best found = *best(0, n, row);
  for (int r = 1; r < group_->num_ranks(); ++r) {
    if (const Best other = *best(r, n, row); other.logit > found.logit) found = other;
  }
  return found.token;
}

size_t GatherLogits::scratch_bytes() const {
  // The rows themselves lie in the arena: sampling reads floats.
  return Scratch::bytes<float>(num_columns(group_->rank()));
}

Send::Send(SharedChannel channel, int x, int64_t width)
    : channel_(std::move(channel)), x_(x), width_(width) {}

TileGrid Send::grid(const StepContext& step) const {
  return whole_grid(step.input().num_tokens(), width_);
}

void Send::run(TileRun tile) const noexcept {
  const uint64_t n = tile.step.transfer(tile.instruction);
  const RowSource x(tile.step, x_);
  float* gathered = tile.scratch.take<float>(width_);
  if (!channel_->wait_free(n)) return;
  float* to = floats(channel_->slot(n));
  for (int row = 0; row < tile.step.input().num_tokens(); ++row) {
    copy_row(x.f32(row, gathered), width_, to + row * width_);
  }
  channel_->publish(n);
}

size_t Send::scratch_bytes() const { return Scratch::bytes<float>(width_); }

Receive::Receive(const StepLimits& limits, SharedChannel channel, int64_t width, int output)
    : max_num_tokens_(int32_t(limits.max_num_tokens)), channel_(std::move(channel)), width_(width) {
  outputs = {output};
}

TileGrid Receive::grid(const StepContext& step) const {
  return whole_grid(step.input().num_tokens(), width_);
}

void Receive::run(TileRun tile) const noexcept {
  const uint64_t n = tile.step.transfer(tile.instruction);
  const TileRange range = tile_range(tile.step.grid(tile.instruction), tile.tile);
  const RowTarget out(tile, outputs[0], range);
  if (!channel_->wait_published(n)) return;
  const float* from = floats(channel_->slot(n));
  for (int row = range.row0; row < range.row1; ++row) {
    copy_row(from + row * width_, width_, out.f32(row));
    out.finish(row);
  }
  channel_->release(n);
}

size_t Receive::scratch_bytes() const {
  return RowTarget::scratch_bytes(max_num_tokens_, width_);
}

}  // namespace takt
