#include "kernels/dequantize_block.h"

#include <cstring>

#include "kernels/float16.h"

namespace takt {

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

void dequantize_row(QuantType type, const std::byte* raw, int64_t cols, float* out) {
  const PanelSpec spec = panel_spec(type);
  const auto file_bytes = file_block_bytes(type);
  if (spec.is_float()) {
    for (int64_t k = 0; k < cols; ++k) out[k] = float_element(type, raw + k * file_bytes);
    return;
  }
  QuantBlock block;
  for (int64_t k = 0; k < cols; k += spec.block_cols(), raw += file_bytes) {
    read_block(type, raw, &block);
    dequantize_block(spec, block, 1.0f, out + k);
  }
}

}  // namespace takt
