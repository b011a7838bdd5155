// What linear_amx.cc offers: BlockProduct of linear_kernels.h, with rows that lie `stride` bytes
// apart, and equal to it bit for bit. With an out.at the products are written there instead, row i of
// x times panel p at out.at + i * out.stride + 16 * p; `tiles` then is room for sums on their way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear_kernels.h"

namespace takt {

using TileProduct = void (*)(const PanelBlock& panels, int64_t cols, const std::byte* first_row,
                             size_t stride, int num_rows, float* tiles, const Output& out);

struct TileKernels {
  TileProduct product[kNumQuantTypes];  // null for float types
};

namespace amx {
extern const TileKernels kTileKernels;
}

}  // namespace takt
