#include "kernels/pack_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/dequantize_block.h"
#include "kernels/float16.h"
#include "kernels/round_bf16.h"

namespace takt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestHalf = 65504.0f;

// Where column k of lane `lane` lies in a panel of a float type.
std::byte* float_place(const PanelSpec& spec, std::byte* panel, int lane, int64_t k) {
  return panel + k / spec.float_cols * spec.block_bytes() +
         (lane * spec.float_cols + k % spec.float_cols) * (spec.bits / 8);
}

void copy_float_row(QuantType type, const std::byte* from, int64_t cols, int lane,
                    std::byte* panel) {
  const PanelSpec spec = panel_spec(type);
  const auto size = size_t(spec.bits / 8);
  for (int64_t k = 0; k < cols; ++k, from += size) {
    std::byte* to = float_place(spec, panel, lane, k);
    if (type == QuantType::kBF16) {
      uint16_t bits;
      std::memcpy(&bits, from, sizeof(bits));
      if ((bits & 0x7fffu) < kSmallestBf16) bits = 0;
      std::memcpy(to, &bits, sizeof(bits));
    } else {
      std::memcpy(to, from, size);
    }
  }
}

void copy_quant_row(QuantType type, const std::byte* from, int64_t cols, int lane,
                    std::byte* panel) {
  const PanelSpec spec = panel_spec(type);
  QuantBlock block;
  for (int64_t k = 0; k < cols; k += spec.block_cols()) {
    read_block(type, from, &block);
    write_block(type, block, lane, panel);
    from += file_block_bytes(type);
    panel += spec.block_bytes();
  }
}

void write_float_row(QuantType type, const float* row, int64_t cols, int lane, std::byte* panel) {
  const PanelSpec spec = panel_spec(type);
  for (int64_t k = 0; k < cols; ++k) {
    std::byte* to = float_place(spec, panel, lane, k);
    if (type == QuantType::kF32) {
      std::memcpy(to, row + k, sizeof(float));
    } else {
      const uint16_t bits =
          type == QuantType::kF16 ? half_from_float(row[k]) : round_to_bf16(row[k]);
      std::memcpy(to, &bits, sizeof(bits));
    }
  }
}

void write_quant_row(QuantType type, const float* row, int64_t cols, int lane, std::byte* panel) {
  QuantBlock block;
  for (int64_t k = 0; k < cols; k += kGroup) {
    quantize_weights(type, row + k, &block);
    write_block(type, block, lane, panel);
    panel += panel_spec(type).block_bytes();
  }
}

// Infinity for a NaN.
float largest_magnitude(const float* row, int64_t cols) {
  uint32_t largest = 0;
  for (int64_t k = 0; k < cols; ++k) largest = std::max(largest, bits_from_float(row[k]) << 1);
  const float magnitude = float_from_bits(largest >> 1);
  return std::isnan(magnitude) ? kInfinity : magnitude;
}

}  // namespace

float largest_packed(QuantType type) {
  if (type == QuantType::kF32 || type == QuantType::kBF16) return kInfinity;
  return type == QuantType::kQ8_0 ? 127.0f * kLargestHalf : kLargestHalf;
}

float PanelPacker::convert_row(const RawMatrix& matrix, const std::byte* from, int lane,
                               std::byte* to) {
  const QuantType target = matrix.target();
  dequantize_row(matrix.type, from, matrix.cols, row_.data());
  const float largest = largest_magnitude(row_.data(), matrix.cols);
  if (largest > largest_packed(target)) return largest;  // it will be refused
  if (panel_spec(target).is_float()) {
    write_float_row(target, row_.data(), matrix.cols, lane, to);
  } else {
    write_quant_row(target, row_.data(), matrix.cols, lane, to);
  }
  return largest;
}

float PanelPacker::pack(const RawMatrix& matrix, int64_t index, std::byte* to) {
  const PanelSpec spec = panel_spec(matrix.type);
  const int file_cols = spec.is_float() ? 1 : spec.block_cols();
  const size_t row_bytes = size_t(matrix.cols / file_cols) * size_t(file_block_bytes(matrix.type));
  const int64_t first = index * kPanelRows;
  const int num_rows = int(std::min(int64_t{kPanelRows}, matrix.rows - first));
  std::memset(to, 0, panel_spec(matrix.target()).panel_bytes(matrix.cols));
  float largest = 0.0f;
  for (int lane = 0; lane < num_rows; ++lane) {
    const std::byte* from = matrix.raw + size_t(first + lane) * row_bytes;
    if (matrix.target() != matrix.type) {
      largest = std::max(largest, convert_row(matrix, from, lane, to));
    } else if (spec.is_float()) {
      copy_float_row(matrix.type, from, matrix.cols, lane, to);
    } else {
      copy_quant_row(matrix.type, from, matrix.cols, lane, to);
    }
  }
  return largest;
}

}  // namespace takt
