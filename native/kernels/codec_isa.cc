// Plain loops, which the compiler turns into vectors of each instruction set.
#include <cstdint>

#include "kernels/codec_kernels.h"

namespace takt::TAKT_ISA {
namespace {

constexpr int64_t kGroupSize = 32;

void add_bf16(const uint16_t* __restrict x, int64_t n, float* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) {
    sum[i] += __builtin_bit_cast(float, static_cast<uint32_t>(x[i]) << 16);
  }
}

void add_int8(const int8_t* __restrict q, const float* __restrict scale, int64_t n,
              float* __restrict sum) {
  for (int64_t group = 0; group < n / kGroupSize; ++group) {
    const float s = scale[group];
    for (int64_t i = group * kGroupSize; i < (group + 1) * kGroupSize; ++i) {
      sum[i] += static_cast<float>(q[i]) * s;
    }
  }
}

}  // namespace

const CodecKernels kCodecKernels = {&add_bf16, &add_int8};

}  // namespace takt::TAKT_ISA
