// What each build of codec_isa.cc offers; codec.h has the contracts.
#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

struct CodecKernels {
  void (*add_bf16)(const uint16_t* x, int64_t n, float* sum);
  void (*add_int8)(const int8_t* q, const float* scale, int64_t n, float* sum);
};
TAKT_DECLARE_ISA_TABLE(CodecKernels, kCodecKernels)

}  // namespace takt
