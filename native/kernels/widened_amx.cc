// The table of products of quantised weights with bf16 rows on AMX's matrix unit.
#include "kernels/tile_kernels.h"
#include "kernels/widened_tile_product.h"

namespace takt::amx {
namespace {

template <int kType>
constexpr void fill(TileKernels& out) {
  if constexpr (kType < kNumQuantTypes) {
    constexpr QuantType kQuantType = QuantType(kType);
    if constexpr (!panel_spec(kQuantType).is_float()) {
      out.product[kType] = &widened_tile_product<kQuantType>;
    }
    fill<kType + 1>(out);
  }
}

constexpr TileKernels make_table() {
  TileKernels out{};
  fill<0>(out);
  return out;
}

}  // namespace

const TileKernels kWidenedKernels = make_table();

}  // namespace takt::amx
