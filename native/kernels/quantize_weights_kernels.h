// What each build of quantize_weights_isa.cc offers.
#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

struct QuantizeWeightsKernels {
  // Of 32 finite values: `scale` and `min` are f16, q the unsigned numbers of PanelSpec.
  void (*q8_0)(const float* x, uint16_t* scale, uint8_t* q);
  void (*q4_1)(const float* x, uint16_t* scale, uint16_t* min, uint8_t* q);
};
TAKT_DECLARE_ISA_TABLE(QuantizeWeightsKernels, kQuantizeWeightsKernels)

}  // namespace takt
