// Values of a compressed all-reduce as they arrive, added up in float32. round_bf16.h and linear.h's
// quantize_row make them.
#pragma once
#include <cstdint>

namespace takt {

// sum[i] += x[i].
void add_bf16(const uint16_t* x, int64_t n, float* sum);

// sum[i] += q[i] * scale[i / 32]; n is a multiple of 32.
void add_int8(const int8_t* q, const float* scale, int64_t n, float* sum);

}  // namespace takt
