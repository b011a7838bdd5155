// The K/V cache of all layers; sizes never change and nothing is ever zeroed.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kv.h"
#include "program/memory.h"

namespace takt {

class KVPool {
 public:
  // `group_of_layer[l]` is layer l's KV group, `num_blocks[g]` the blocks of group g. Throws
  // std::invalid_argument with a sentence if they do not agree.
  KVPool(std::vector<int> group_of_layer, std::vector<int64_t> num_blocks, int64_t num_kv_heads,
         int64_t head_dim, int64_t block_size, KVType type);
  KVPool(const KVPool&) = delete;
  KVPool& operator=(const KVPool&) = delete;

  int num_layers() const { return int(layers_.size()); }
  int num_groups() const { return int(num_blocks_.size()); }
  int group_of(int layer) const { return group_of_layer_[size_t(layer)]; }
  int64_t num_blocks(int group) const { return num_blocks_[size_t(group)]; }
  int64_t block_size() const { return block_size_; }
  // Of one block of a group: K and V of all its layers.
  int64_t block_bytes(int group) const;
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  const KVLayer& layer(int layer) const { return layers_[size_t(layer)]; }

 private:
  std::vector<int> group_of_layer_;
  std::vector<int64_t> num_blocks_;
  int64_t num_kv_heads_;
  int64_t head_dim_;
  int64_t block_size_;
  std::vector<Memory> memory_;
  std::vector<KVLayer> layers_;
};

}  // namespace takt
