// Instructions that wait for other ranks. A tile of them is computed by one thread, once.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/channel.h"
#include "parallel/communicator.h"
#include "program/instruction.h"
#include "program/logits.h"
#include "program/step_input.h"

namespace takt {

using SharedCommunicator = std::shared_ptr<Communicator>;
using SharedChannel = std::shared_ptr<Channel>;

class RowTarget;

class Transfer : public Instruction {
 public:
  bool may_redo() const override { return false; }
  size_t staged_bytes(const ProgramPlan&, const TileGrid&) const override { return 0; }
  // Its time is that of other ranks, and there is no redo that it could set off.
  int64_t tile_work(const StepContext&, const TileGrid&) const override { return 0; }
};

// The sum of a value over the ranks of a group, in their order, exchanged as the group's payload
// says. Tiles are rows, cut alike on all ranks; tile t is lane t of the collective.
class AllReduce final : public Transfer {
 public:
  AllReduce(const StepLimits& limits, SharedCommunicator group, int x, int64_t width, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override { return Communicator::kMaxLanes; }
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  Link* link() const override { return group_.get(); }

 private:
  void sum_rows(const TileRun& tile, const TileRange& range, float* row_values,
                const RowTarget& out) const;
  void sum_compressed_rows(const TileRun& tile, const TileRange& range, float* row_values,
                           const RowTarget& out) const;
  // Of a row in the slots, in bytes.
  size_t row_offset(int row) const { return size_t(row) * size_t(width_) * sizeof(float); }

  int32_t max_num_tokens_;
  SharedCommunicator group_;
  int x_;
  int64_t width_;
};

// Columns of a block's logits from all ranks, whole rows on rank 0. `borders[r]` is the first
// column of rank r; the last entry is the vocabulary's size. Of a row that asks for the best token
// only, ranks exchange their best; its number, as bits, is then the row's first element.
class GatherLogits final : public Transfer {
 public:
  // A rank has 16 columns at least. `output` is kNoValue on all ranks but the first.
  GatherLogits(SharedCommunicator group, LogitsBlock block, int logits,
               std::vector<int64_t> borders, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override { return Communicator::kMaxLanes; }
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  Link* link() const override { return group_.get(); }

 private:
  struct Best {
    float logit;
    int32_t token;
  };
  static Best best_of(const float* logits, int64_t num_logits, int64_t first);
  bool asks_best(const StepContext& step, int row) const;
  float* part(int rank, uint64_t n, int row) const;
  Best* best(int rank, uint64_t n, int row) const;
  int32_t best_of_all(uint64_t n, int row) const;
  int64_t num_columns(int rank) const {
    return borders_[size_t(rank) + 1] - borders_[size_t(rank)];
  }

  SharedCommunicator group_;
  LogitsBlock block_;
  int logits_;
  std::vector<int64_t> borders_;
};

// Rows of a value to the next stage of a pipeline.
class Send final : public Transfer {
 public:
  Send(SharedChannel channel, int x, int64_t width);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override { return 1; }
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  Link* link() const override { return channel_.get(); }

 private:
  SharedChannel channel_;
  int x_;
  int64_t width_;
};

// Rows from the stage before.
class Receive final : public Transfer {
 public:
  Receive(const StepLimits& limits, SharedChannel channel, int64_t width, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override { return 1; }
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  Link* link() const override { return channel_.get(); }

 private:
  int32_t max_num_tokens_;
  SharedChannel channel_;
  int64_t width_;
};

}  // namespace takt
