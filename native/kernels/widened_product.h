// Products of quantised weights with bf16 rows. Memory holds the packed form alone; a group of 32
// columns is widened to bf16 numbers while its panel passes: those nearest (ties to even) to the f32
// values that dequantize_block gives.
//
// The product of a row of x with a row of weights, as AMX's product of bf16 pairs adds it up:
//   even = x[0] * w[0], then plus the products of columns 2, 4, ... 30 of a group; odd: of 1, 3, ... 31
//   sum  = sum + (even + odd)                         group by group, from 0
// Each sum is rounded once. Products are exact in f32. Stored scales and minima are multiples of 2^-24,
// so are weights; with rows of round_bf16.h no product or sum is subnormal, which AMX takes for zero.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace takt {

// tile[i * 16 + r] is row i of x, of `num_rows`, times row r of a panel of `type`. A row is the start of
// `cols` bf16 numbers that round_row_to_bf16 wrote. For CPUs without a matrix unit: right, not fast.
void multiply_widened_panel(QuantType type, const std::byte* panel, int64_t cols,
                            const std::byte* const* rows, int num_rows, float* tile);

}  // namespace takt
