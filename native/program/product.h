// Products with packed weights: a linear layer, and the gated half of an MLP.
#pragma once
#include <memory>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "program/instruction.h"
#include "program/rows.h"
#include "program/step_input.h"

namespace takt {

// Rows of an activation gathered for a product, in the forms that a weight takes.
class ProductRows {
 public:
  // Pointers for `num_rows` rows, of which row i is row_of(i) of `x`: those of generated tokens first.
  template <class RowOf>
  ProductRows(TileRun& tile, const RowSource& x, const PackedWeight& w, int num_rows,
              RowOf row_of) {
    Scratch& scratch = tile.scratch;
    const int num_q8_tokens = tile.step.input().num_q8_tokens();
    rows_.m = num_rows;
    while (rows_.num_q8 < num_rows && row_of(rows_.num_q8) < num_q8_tokens) ++rows_.num_q8;
    if (w.is_quantised()) {
      Q8Row* q8 = scratch.take<Q8Row>(num_rows);
      const size_t bytes = q8_row_bytes(w.cols());
      std::byte* gathered = scratch.take<std::byte>(int64_t(bytes) * num_rows);
      for (int i = 0; i < rows_.num_q8; ++i) {
        q8[i] = x.q8(row_of(i), gathered + size_t(i) * bytes);
      }
      rows_.q8 = q8;
    }
    if (w.needs_f32()) {
      const float** f32 = scratch.take<const float*>(num_rows);
      float* gathered = scratch.take<float>(w.cols() * num_rows);
      for (int i = 0; i < num_rows; ++i) f32[i] = x.f32(row_of(i), gathered + i * w.cols());
      rows_.f32 = f32;
    }
    const int first = w.needs_bf16() ? 0 : rows_.num_q8;
    if (w.needs_bf16() || (w.is_quantised() && first < num_rows)) {
      const uint16_t** bf16 = scratch.take<const uint16_t*>(num_rows);
      uint16_t* gathered = scratch.take<uint16_t>(bf16_row_elements(w.cols()) * num_rows);
      for (int i = first; i < num_rows; ++i) {
        bf16[i] = x.bf16(row_of(i), gathered + i * bf16_row_elements(w.cols()));
      }
      space_evenly(bf16 + rows_.num_q8, num_rows - rows_.num_q8,
                   gathered + rows_.num_q8 * bf16_row_elements(w.cols()), w.cols());
      rows_.bf16 = bf16;
    }
  }

  const ActivationRows& rows() const { return rows_; }

  static size_t scratch_bytes(const PackedWeight& w, int64_t num_rows);

 private:
  // Copies rows that lie anyhow to `gathered`: the matrix unit takes many at once.
  static void space_evenly(const uint16_t** rows, int num, uint16_t* gathered, int64_t width);

  ActivationRows rows_{nullptr, nullptr, nullptr, 0, 0};
};

// x @ w.T + bias.
class Linear final : public Instruction {
 public:
  Linear(const StepLimits& limits, int num_threads, int x, std::shared_ptr<const PackedWeight> w,
         int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;
  bool reads_weights() const override { return true; }
  WeightMemory weights(const TileGrid& grid, int tile) const override;

 private:
  TileGrid grid_for(int32_t rows) const;

  int64_t max_num_tokens_;
  int num_threads_;
  int x_;
  std::shared_ptr<const PackedWeight> w_;
};

// act(x @ gate.T) * (x @ up.T), where `w` stacks gate over up.
class GatedLinear final : public Instruction {
 public:
  GatedLinear(const StepLimits& limits, int num_threads, int x,
              std::shared_ptr<const PackedWeight> w, Gate kind, int output);

  TileGrid grid(const StepContext& step) const override;
  int32_t max_tiles() const override;
  void run(TileRun tile) const noexcept override;
  size_t scratch_bytes() const override;
  size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const override;
  int64_t tile_work(const StepContext& step, const TileGrid& grid) const override;
  bool reads_weights() const override { return true; }
  WeightMemory weights(const TileGrid& grid, int tile) const override;

 private:
  TileGrid grid_for(int32_t rows) const;

  int64_t max_num_tokens_;
  int num_threads_;
  int x_;
  std::shared_ptr<const PackedWeight> w_;
  int64_t width_;
  Gate kind_;
};

}  // namespace takt
