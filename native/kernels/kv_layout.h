// Where an element lies inside a (block, head) piece of the KV cache.
//
// Attention reads both K and V in tiles of 16 positions with 16 lanes. Over K the lanes are
// positions (a score is summed over the head's elements), over V they are elements of the head.
// Elements that follow each other along the summed dimension share a 32-bit word: two bf16, so that
// a shift widens one and a mask the other, or four int8, as products of bytes want them. Other
// types have no such groups. With `lanes` positions to a tile of K (16, or 8 where the block size is no
// multiple of 16) and groups of g (4, 2 or 1), a piece holds
//   K  [block_size / lanes][head_dim / g][lanes][g]
//   V  [block_size / g][head_dim][g]
#pragma once
#include <cstdint>

#include "kernels/kv.h"

namespace takt {

inline constexpr int64_t kTile = 16;

[[gnu::always_inline]] inline int64_t key_lanes(int64_t block_size) {
  return block_size % kTile == 0 ? kTile : kTile / 2;
}

// Elements of K or V that follow each other along the summed dimension.
[[gnu::always_inline]] constexpr int64_t summed_group(KVType type) {
  return type == KVType::kBF16 ? 2 : type == KVType::kInt8 ? 4 : 1;
}

// int8 lie in the cache with this added, since products of bytes take one unsigned factor.
inline constexpr int kInt8Zero = 128;

// Bytes from the start of the cache to a (block, head) piece, and to its scales.
[[gnu::always_inline]] inline int64_t piece_offset(const KVLayer& kv, int64_t block, int64_t head) {
  return block * int64_t(kv.block_bytes()) + head * int64_t(kv.piece_bytes());
}
[[gnu::always_inline]] inline int64_t scales_offset(const KVLayer& kv, int64_t block,
                                                    int64_t head) {
  return block * int64_t(kv.block_bytes()) + kv.num_kv_heads * int64_t(kv.piece_bytes()) +
         head * kv.block_size * int64_t(scale_bytes(kv.type));
}

}  // namespace takt
