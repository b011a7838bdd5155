#include "program/kv_pool.h"

#include <stdexcept>
#include <string>

namespace takt {

KVPool::KVPool(std::vector<int> group_of_layer, std::vector<int64_t> num_blocks,
               int64_t num_kv_heads, int64_t head_dim, int64_t block_size, KVType type)
    : group_of_layer_(std::move(group_of_layer)),
      num_blocks_(std::move(num_blocks)),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_size_(block_size) {
  if (num_kv_heads < 1 || head_dim < 1 || block_size < 1) {
    throw std::invalid_argument("KV heads, head size and block size must be at least 1");
  }
  for (size_t l = 0; l < group_of_layer_.size(); ++l) {
    const int group = group_of_layer_[l];
    if (group < 0 || group >= num_groups()) {
      throw std::invalid_argument("layer " + std::to_string(l) + " is in KV group " +
                                  std::to_string(group) + " of " + std::to_string(num_groups()));
    }
    KVLayer layer{nullptr, nullptr, type, num_kv_heads, block_size, head_dim};
    const size_t half = layer.block_bytes() * size_t(num_blocks_[size_t(group)]);
    memory_.emplace_back(2 * half);
    layer.k = memory_.back().data();
    layer.v = layer.k + half;
    layers_.push_back(layer);
  }
}

int64_t KVPool::block_bytes(int group) const {
  int64_t bytes = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (group_of_layer_[l] == group) bytes += 2 * int64_t(layers_[l].block_bytes());
  }
  return bytes;
}

}  // namespace takt
