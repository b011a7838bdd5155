// What each build of sampling_isa.cc offers. NaN counts as less than everything.
#pragma once
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

// A weight of 2^30 stands for the probability of the most likely token.
inline constexpr float kWeightOne = 0x1p30f;

struct SamplingKernels {
  // The first of the largest; 0 if none is larger than -inf.
  int64_t (*argmax)(const float* x, int64_t n);
  // Sum of e^(x[i] - max); no x[i] is larger than max, which is finite.
  double (*sum_exp)(const float* x, int64_t n, float max);
  // Entries with a larger value than x[index], and those before it with an equal one.
  int64_t (*count_ahead)(const float* x, int64_t n, int64_t index);
  // The first i >= begin with x[i] > bound; n if there is none.
  int64_t (*find_above)(const float* x, int64_t begin, int64_t n, float bound);
  // weight[i] = e^((x[i] - max) * inverse_temperature) * kWeightOne, rounded to nearest.
  void (*weights)(const float* x, int64_t n, float max, float inverse_temperature,
                  uint32_t* weight);
};
TAKT_DECLARE_ISA_TABLE(SamplingKernels, kSamplingKernels)

}  // namespace takt
