// Tables of products on the matrix unit, one entry for each quantised type.
#pragma once
#include "kernels/tile_kernels.h"

namespace takt::TAKT_ISA {

// `ProductOf<kType>::kProduct` is a type's product.
template <template <QuantType> class ProductOf, int kType = 0>
constexpr void fill_tile_table(TileKernels& out) {
  if constexpr (kType < kNumQuantTypes) {
    if constexpr (!panel_spec(QuantType(kType)).is_float()) {
      out.product[kType] = ProductOf<QuantType(kType)>::kProduct;
    }
    fill_tile_table<ProductOf, kType + 1>(out);
  }
}

template <template <QuantType> class ProductOf>
constexpr TileKernels tile_table() {
  TileKernels out{};
  fill_tile_table<ProductOf>(out);
  return out;
}

}  // namespace takt::TAKT_ISA
