// Products with panels of float weights.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace takt {

// tile[i * 16 + r] is row i of x, of `num_rows`, times row r of a panel of `type` (f32, f16 or bf16).
// A row is the start of `cols` floats, or for bf16 weights of `cols` bf16 numbers, followed by a zero
// if they are odd.
void multiply_float_panel(QuantType type, const std::byte* panel, int64_t cols,
                          const std::byte* const* rows, int num_rows, float* tile);

}  // namespace takt
