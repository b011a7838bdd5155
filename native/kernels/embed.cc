#include <algorithm>
#include <cstring>

#include "kernels/float16.h"
#include "kernels/linear.h"
#include "kernels/pack_block.h"
#include "kernels/packed_matrix.h"

namespace takt {
namespace {

float float_element(QuantType type, const std::byte* from) {
  if (type == QuantType::kF32) {
    float out;
    std::memcpy(&out, from, sizeof(out));
    return out;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return type == QuantType::kF16 ? float_from_half(bits) : float_from_bf16(bits);
}

// Values of a block as the formula of its type gives them in f32, times `scale`.
void dequantize_block(const PanelSpec& spec, const QuantBlock& block, float scale, float* out) {
  const float d = float_from_half(block.scale);
  const float dmin = spec.has_min() ? float_from_half(block.min) : 0.0f;
  for (int c = 0; c < spec.block_cols(); ++c) {
    const float q = float(int(block.q[c]) - spec.zero);
    float value = 0.0f;
    switch (spec.scales) {
      case Scales::kGroup: value = d * q; break;
      case Scales::kGroupMin: value = d * q + dmin; break;
      case Scales::kSuperMin:
        value = d * float(block.sc[c / 32]) * q - dmin * float(block.m[c / 32]);
        break;
      case Scales::kSuperHalf: value = d * float(int8_t(block.sc[c / 16])) * q; break;
      case Scales::kNone: break;
    }
    out[c] = value * scale;
  }
}

}  // namespace

void embed_row(const PackedWeight& weight, int64_t row, float scale, float* out) {
  const auto& w = static_cast<const PackedMatrix&>(weight);
  const auto part = std::find_if(w.parts().begin(), w.parts().end(), [&](const PackedPart& p) {
    return row < p.first_row + p.rows;
  });
  const PanelSpec spec = panel_spec(part->type);
  const int lane = int((row - part->first_row) % kPanelRows);
  const std::byte* from = w.panel(*part, (row - part->first_row) / kPanelRows);
  QuantBlock block;
  for (int64_t k = 0; k < w.cols(); k += spec.block_cols(), from += spec.block_bytes()) {
    if (spec.is_float()) {
      out[k] = float_element(part->type, from + lane * spec.bits / 8) * scale;
    } else {
      read_lane(part->type, from, lane, &block);
      dequantize_block(spec, block, scale, out + k);
    }
  }
}

}  // namespace takt
