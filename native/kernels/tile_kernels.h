// What linear_amx.cc and widened_amx.cc offer: BlockProduct of linear_kernels.h and the product of
// widened_product.h, with rows that lie `stride` bytes apart, and equal to them bit for bit. With an out.at the products are written there instead, row i of
// x times panel p at out.at + i * out.stride + 16 * p; `tiles` then is room for sums on their way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear_kernels.h"

namespace takt {

using TileProduct = void (*)(const PanelBlock& panels, int64_t cols, const std::byte* first_row,
                             size_t stride, int num_rows, float* tiles, const Output& out);

// Null for float types.
struct TileKernels {
  TileProduct product[kNumQuantTypes];
};

namespace amx {
extern const TileKernels kTileKernels;     // of q8 rows
extern const TileKernels kWidenedKernels;  // of bf16 rows
}  // namespace amx

}  // namespace takt
