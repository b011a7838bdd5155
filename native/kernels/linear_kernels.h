// What each build of linear_isa.cc and linear_float_isa.cc offers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/panel.h"

namespace takt {

inline constexpr int kMaxBlockRows = 16;

// Products of one panel with a block of rows, each the start of a q8 row (activation.h) or of
// `cols` floats: tile[i * 16 + r] is row i of x times row r of the panel.
using PanelProduct = void (*)(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                              float* tile);

// product[type][m] is for blocks of m rows; null where a build has no kernel of that size, but
// never for the largest size.
struct LinearKernels {
  int max_quant_rows;
  int max_float_rows;
  PanelProduct product[kNumQuantTypes][kMaxBlockRows + 1];
};
TAKT_DECLARE_ISA_TABLE(LinearKernels, kLinearKernels)

}  // namespace takt
