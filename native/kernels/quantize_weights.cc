#include "kernels/quantize_weights.h"

#include "kernels/quantize_weights_kernels.h"

namespace takt {

void quantize_weights(QuantType type, const float* x, QuantBlock* block) {
  static constexpr const QuantizeWeightsKernels* kTables[] =
      TAKT_ISA_TABLES(kQuantizeWeightsKernels);
  const QuantizeWeightsKernels& kernels = *kTables[isa_index()];
  if (type == QuantType::kQ8_0) {
    kernels.q8_0(x, &block->scale, block->q);
  } else {
    kernels.q4_1(x, &block->scale, &block->min, block->q);
  }
}

}  // namespace takt
