// Values of a compressed all-reduce: rounded before they are sent, added up in float32.
#pragma once
#include <cstdint>

namespace takt {

// Rounds n values to bf16, to nearest even; a NaN stays one.
void encode_bf16(const float* x, int64_t n, uint16_t* out);

// sum[i] += x[i].
void add_bf16(const uint16_t* x, int64_t n, float* sum);

// sum[i] += q[i] * scale[i / 32]; n is a multiple of 32. What quantize_row (linear.h) makes of a row.
void add_int8(const int8_t* q, const float* scale, int64_t n, float* sum);

}  // namespace takt
