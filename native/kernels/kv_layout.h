// Where an element lies inside a (block, head) piece of the KV cache.
//
// Attention reads both K and V in tiles of 16 positions with 16 lanes. Over K the lanes are
// positions (a score is summed over the head's elements), over V they are elements of the head. Two
// bf16 that follow each other along the summed dimension share a 32-bit word, so that a shift
// widens one and a mask the other. With `lanes` positions to a tile of K (16, or 8 where the block
// size is no multiple of 16) a piece holds
//   K bf16  [block_size / lanes][head_dim / 2][lanes][2]
//   K f32   [block_size / lanes][head_dim][lanes]
//   V bf16  [block_size / 2][head_dim][2]
//   V f32   [block_size][head_dim]
#pragma once
#include <cstdint>

#include "kernels/attention.h"

namespace takt {

inline constexpr int64_t kTile = 16;
static_assert(kSplit % kTile == 0);

[[gnu::always_inline]] inline int64_t key_lanes(int64_t block_size) {
  return block_size % kTile == 0 ? kTile : kTile / 2;
}

// Elements from the start of the cache to that of a piece.
[[gnu::always_inline]] inline int64_t piece_offset(const KVLayer& kv, int64_t block, int64_t head) {
  return (block * kv.num_kv_heads + head) * kv.block_size * kv.head_dim;
}

}  // namespace takt
