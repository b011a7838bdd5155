// The table of products of quantised weights with bf16 rows on AMX's matrix unit.
#include "kernels/tile_table.h"
#include "kernels/widened_tile_product.h"

namespace takt::amx {
namespace {

template <QuantType kType>
struct OfBf16 {
  static constexpr TileProduct kProduct = &widened_tile_product<kType>;
};

}  // namespace

const TileKernels kWidenedKernels = tile_table<OfBf16>();

}  // namespace takt::amx
