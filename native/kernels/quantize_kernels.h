// What each build of quantize_isa.cc offers.
#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

struct QuantizeKernels {
  // The parts of a q8 row (activation.h) of k values; k is a multiple of 32.
  void (*row)(const float* x, int64_t k, int8_t* q, float* scale, float* scaled_sum, int16_t* sum);
};
TAKT_DECLARE_ISA_TABLE(QuantizeKernels, kQuantizeKernels)

}  // namespace takt
