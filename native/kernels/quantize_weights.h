// Float weights to the storage types of packed panels, one group of 32 at a time.
#pragma once
#include "kernels/pack_block.h"

namespace takt {

// Quantises 32 values to a block of `type`, Q8_0 or Q4_1; all must be finite. The same on every
// instruction set.
void quantize_weights(QuantType type, const float* x, QuantBlock* block);

// Whether quantize_weights makes `type`.
constexpr bool is_made_from_floats(QuantType type) {
  return type == QuantType::kQ8_0 || type == QuantType::kQ4_1;
}

}  // namespace takt
