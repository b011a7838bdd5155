// What each build of round_bf16_isa.cc offers.
#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

struct RoundBf16Kernels {
  void (*row)(const float* x, int64_t k, uint16_t* out);
};
TAKT_DECLARE_ISA_TABLE(RoundBf16Kernels, kRoundBf16Kernels)

}  // namespace takt
