#include "program/block_copy.h"

#include <cstring>

#include "program/step_context.h"

namespace takt {

TileGrid BlockCopy::grid(const StepContext& step) const {
  if (step.input().num_block_copies() == 0) return {};
  return {kv_->num_layers(), 1, 1, 1};
}

void BlockCopy::run(TileRun tile) const noexcept {
  const KVLayer& layer = kv_->layer(tile.tile);
  const size_t bytes = layer.block_bytes();
  const StepInput& input = tile.step.input();
  for (int i = 0; i < input.num_block_copies(); ++i) {
    const int32_t* copy = input.block_copies() + 3 * i;  // group, source, destination
    if (copy[0] != kv_->group_of(tile.tile) || copy[1] == copy[2]) continue;
    for (std::byte* pool : {layer.k, layer.v}) {
      std::memcpy(pool + size_t(copy[2]) * bytes, pool + size_t(copy[1]) * bytes, bytes);
    }
  }
}

int64_t BlockCopy::tile_work(const StepContext& step, const TileGrid&) const {
  return int64_t(kv_->layer(0).block_bytes()) * step.input().num_block_copies();
}

}  // namespace takt
