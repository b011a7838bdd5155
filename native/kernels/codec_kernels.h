// What each build of codec_isa.cc offers; codec.h has the contracts.
#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

struct CodecKernels {
  void (*round_f16)(const float* x, int64_t n, uint16_t* out);
  void (*expand_bf16)(const uint16_t* x, int64_t n, float* out);
  void (*expand_f16)(const uint16_t* x, int64_t n, float* out);
  void (*expand_int8)(const int8_t* q, const float* scale, int64_t n, float* out);
  void (*add_bf16)(const uint16_t* x, int64_t n, float* sum);
  void (*add_f16)(const uint16_t* x, int64_t n, float* sum);
  void (*add_int8)(const int8_t* q, const float* scale, int64_t n, float* sum);
};
TAKT_DECLARE_ISA_TABLE(CodecKernels, kCodecKernels)

}  // namespace takt
