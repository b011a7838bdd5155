// Values of stored weights in f32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/pack_block.h"

namespace takt {

// One element of a float type.
float float_element(QuantType type, const std::byte* from);

// Values of a block as the formula of its type gives them in f32, times `scale`.
void dequantize_block(const PanelSpec& spec, const QuantBlock& block, float scale, float* out);

// A row of `cols` columns as a model file stores it.
void dequantize_row(QuantType type, const std::byte* raw, int64_t cols, float* out);

}  // namespace takt
