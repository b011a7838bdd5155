// Values of a compressed all-reduce: rounded, and expanded again to float32. round_bf16.h makes bf16.
#pragma once
#include <cstdint>

namespace takt {

// To fp16, to nearest even. What fp16 cannot hold becomes its largest number, 65504 with the value's
// sign, since an infinity would spread over all of a row; a NaN stays one.
void round_row_to_f16(const float* x, int64_t n, uint16_t* out);

// To the int8 groups of 32 that quantize_row (linear.h) makes; n is a multiple of 32.
void quantize_groups(const float* x, int64_t n, int8_t* q, float* scale);

// out[i] = x[i], or q[i] * scale[i / 32].
void expand_bf16(const uint16_t* x, int64_t n, float* out);
void expand_f16(const uint16_t* x, int64_t n, float* out);
void expand_int8(const int8_t* q, const float* scale, int64_t n, float* out);

// sum[i] += the same.
void add_bf16(const uint16_t* x, int64_t n, float* sum);
void add_f16(const uint16_t* x, int64_t n, float* sum);
void add_int8(const int8_t* q, const float* scale, int64_t n, float* sum);

}  // namespace takt
