// The one implementation of PackedWeight: panels (panel.h) in a piece of memory of their own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/linear.h"
#include "kernels/panel.h"
#include "kernels/panel_memory.h"

namespace takt {

// A matrix of the stack. Its row r is stack row first_row + r, lane r % 16 of panel r / 16.
struct PackedPart {
  QuantType type;
  int64_t first_row;
  int64_t rows;
  size_t offset;       // of its first panel
  size_t panel_bytes;  // a multiple of 32

  int64_t num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
};

class PackedMatrix final : public PackedWeight {
 public:
  PackedMatrix(std::vector<PackedPart> parts, int64_t rows, int64_t cols, PanelMemory memory,
               size_t bytes, std::vector<float> bias)
      : parts_(std::move(parts)),
        rows_(rows),
        cols_(cols),
        memory_(std::move(memory)),
        bytes_(bytes),
        bias_(std::move(bias)) {}

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  bool is_quantised() const override {
    return has_part([](QuantType type) { return !panel_spec(type).is_float(); });
  }
  bool needs_f32() const override {
    return has_part([](QuantType type) {
      return panel_spec(type).is_float() && type != QuantType::kBF16;
    });
  }
  bool needs_bf16() const override {
    return has_part([](QuantType type) { return type == QuantType::kBF16; });
  }
  size_t bytes() const override { return bytes_ + bias_.size() * sizeof(float); }

  std::span<const std::byte> memory_of_rows(int64_t n0, int64_t n1) const override {
    const std::byte* first = panel_of_row(n0).data();
    const std::span<const std::byte> last = panel_of_row(n1 - 1);
    return {first, last.data() + last.size()};
  }

  const std::vector<PackedPart>& parts() const { return parts_; }
  const std::byte* panel(const PackedPart& part, int64_t index) const {
    return memory_.get() + part.offset + size_t(index) * part.panel_bytes;
  }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  std::span<const std::byte> panel_of_row(int64_t row) const {
    const PackedPart* part = &parts_.front();
    while (row >= part->first_row + part->rows) ++part;
    return {panel(*part, (row - part->first_row) / kPanelRows), part->panel_bytes};
  }

  template <class Wanted>
  bool has_part(Wanted wanted) const {
    for (const PackedPart& part : parts_) {
      if (wanted(part.type)) return true;
    }
    return false;
  }

  std::vector<PackedPart> parts_;
  int64_t rows_;
  int64_t cols_;
  PanelMemory memory_;
  size_t bytes_;
  std::vector<float> bias_;
};

}  // namespace takt
