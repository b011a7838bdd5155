// What each build of float_linear_isa.cc offers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/panel.h"

namespace takt {

inline constexpr int kNumFloatTypes = 3;
inline constexpr int kMaxFloatBlockRows = 12;

using FloatProduct = void (*)(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                              float* tile);

// product[type][m] is for blocks of m rows, each the start of `cols` floats, or for bf16 weights of
// `cols` bf16 numbers (a zero follows if they are odd); null where a build has no kernel of that
// size, but never for max_rows.
struct FloatLinearKernels {
  int max_rows;
  FloatProduct product[kNumFloatTypes][kMaxFloatBlockRows + 1];
};
TAKT_DECLARE_ISA_TABLE(FloatLinearKernels, kFloatLinearKernels)

}  // namespace takt
