// The table of products of q8 rows on AMX's matrix unit; compiled for CPUs that have one.
#include "kernels/tile_product.h"
#include "kernels/tile_table.h"

namespace takt::amx {
namespace {

template <QuantType kType>
struct OfQ8 {
  static constexpr TileProduct kProduct = &tile_product<kType>;
};

}  // namespace

const TileKernels kTileKernels = tile_table<OfQ8>();

}  // namespace takt::amx
