#include "kernels/widened_product.h"

#include <algorithm>

#include "kernels/dequantize_block.h"
#include "kernels/float16.h"

namespace takt {
namespace {

constexpr int kMaxBlockCols = 256;

uint16_t nearest_bf16(float x) {
  const uint32_t bits = bits_from_float(x);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The weights of a panel's block, [columns, 16 rows].
void widen_block(QuantType type, const std::byte* block, float (*out)[kPanelRows]) {
  const PanelSpec spec = panel_spec(type);
  for (int lane = 0; lane < kPanelRows; ++lane) {
    QuantBlock stored;
    float values[kMaxBlockCols];
    read_lane(type, block, lane, &stored);
    dequantize_block(spec, stored, 1.0f, values);
    for (int c = 0; c < spec.block_cols(); ++c) {
      out[c][lane] = float_from_bf16(nearest_bf16(values[c]));
    }
  }
}

// Adds a group's products to the sums of 16 rows of weights.
void add_group(const uint16_t* x, const float (*w)[kPanelRows], float* sums) {
  float even[kPanelRows] = {}, odd[kPanelRows] = {};
  for (int k = 0; k < int(kGroup); k += 2) {
    const float x0 = float_from_bf16(x[k]), x1 = float_from_bf16(x[k + 1]);
    for (int r = 0; r < kPanelRows; ++r) {
      even[r] += x0 * w[k][r];
      odd[r] += x1 * w[k + 1][r];
    }
  }
  for (int r = 0; r < kPanelRows; ++r) sums[r] += even[r] + odd[r];
}

}  // namespace

void multiply_widened_panel(QuantType type, const std::byte* panel, int64_t cols,
                            const std::byte* const* rows, int num_rows, float* tile) {
  const PanelSpec spec = panel_spec(type);
  std::fill_n(tile, num_rows * kPanelRows, 0.0f);
  float w[kMaxBlockCols][kPanelRows];
  for (int64_t k = 0; k < cols; k += spec.block_cols(), panel += spec.block_bytes()) {
    widen_block(type, panel, w);
    for (int i = 0; i < num_rows; ++i) {
      const uint16_t* x = reinterpret_cast<const uint16_t*>(rows[i]) + k;
      for (int g = 0; g < spec.block_cols(); g += int(kGroup)) {
        add_group(x + g, w + g, tile + kPanelRows * i);
      }
    }
  }
}

}  // namespace takt
