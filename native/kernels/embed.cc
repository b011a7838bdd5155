#include <algorithm>

#include "kernels/dequantize_block.h"
#include "kernels/linear.h"
#include "kernels/packed_matrix.h"

namespace takt {

void embed_row(const PackedWeight& weight, int64_t row, float scale, float* out) {
  const auto& w = static_cast<const PackedMatrix&>(weight);
  const auto part = std::find_if(w.parts().begin(), w.parts().end(), [&](const PackedPart& p) {
    return row < p.first_row + p.rows;
  });
  const PanelSpec spec = panel_spec(part->type);
  const int lane = int((row - part->first_row) % kPanelRows);
  const std::byte* from = w.panel(*part, (row - part->first_row) / kPanelRows);
  if (spec.is_float()) {
    const int element = spec.bits / 8;
    for (int64_t k = 0; k < w.cols(); ++k) {
      const std::byte* block = from + k / spec.float_cols * spec.block_bytes();
      const int64_t at = lane * spec.float_cols + k % spec.float_cols;
      out[k] = float_element(part->type, block + at * element) * scale;
    }
    return;
  }
  QuantBlock block;
  for (int64_t k = 0; k < w.cols(); k += spec.block_cols(), from += spec.block_bytes()) {
    read_lane(part->type, from, lane, &block);
    dequantize_block(spec, block, scale, out + k);
  }
}

}  // namespace takt
