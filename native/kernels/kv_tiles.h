// Tiles of 16 positions of one head's K and V in a paged cache, as attention reads them.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/kv_layout.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {

// Element types of the cache. `key(tile, pair)` is elements 2 * pair and 2 * pair + 1 of the head
// for 16 positions; `value(tile, head_dim, pair, d)` is positions 2 * pair and 2 * pair + 1 for
// elements d to d + 15, or to d + 7 with `kHalf`.
struct BF16Tile {
  using Element = uint16_t;
  static constexpr int64_t kWordElements = 2;
  static TAKT_VEC_INLINE Vec16Pair key(const uint16_t* tile, int64_t pair) {
    return load_bf16_pair(tile + 2 * kTile * pair);
  }
  template <bool kHalf>
  static TAKT_VEC_INLINE Vec16Pair value(const uint16_t* tile, int64_t head_dim, int64_t pair,
                                         int64_t d) {
    const uint16_t* p = tile + 2 * (pair * head_dim + d);
    return kHalf ? load_bf16_pair_half(p) : load_bf16_pair(p);
  }
};
struct F32Tile {
  using Element = float;
  static constexpr int64_t kWordElements = 1;
  static TAKT_VEC_INLINE Vec16Pair key(const float* tile, int64_t pair) {
    const float* p = tile + 2 * kTile * pair;
    return {load(p), load(p + kTile)};
  }
  template <bool kHalf>
  static TAKT_VEC_INLINE Vec16Pair value(const float* tile, int64_t head_dim, int64_t pair,
                                         int64_t d) {
    const float* p = tile + 2 * pair * head_dim + d;
    if constexpr (kHalf) return {load_first(p, 8), load_first(p + head_dim, 8)};
    return {load(p), load(p + head_dim)};
  }
};

#if defined(__SANITIZE_THREAD__)
// A thread that is late with a tile may store values that are there already: a race without effect
// between its relaxed stores and plain vector loads. The thread sanitizer is shown relaxed loads.
inline constexpr bool kReadThroughCopy = true;
TAKT_VEC_INLINE void copy_shared(void* to, const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes / 4; ++i) {
    static_cast<uint32_t*>(to)[i] =
        __atomic_load_n(static_cast<const uint32_t*>(from) + i, __ATOMIC_RELAXED);
  }
}
#else
inline constexpr bool kReadThroughCopy = false;
TAKT_VEC_INLINE void copy_shared(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, size_t(bytes));
}
#endif

template <class Type>
class KVTiles {
 public:
  using Element = typename Type::Element;

  // Only positions of [begin, end) are looked up in the block table.
  KVTiles(const AttentionArgs& a, int64_t kv_head, int64_t begin, int64_t end)
      : a_(a), kv_head_(kv_head), begin_(begin), end_(end) {}

  // Tiles lie in the cache as the kernels want them, so that no copy is made.
  bool in_place() const { return !kReadThroughCopy && a_.kv.block_size % kTile == 0; }

  // The tile that starts at `position`; where not in place, it is copied to `copy`, which has room
  // for kTile * head_dim elements. Positions outside [begin, end) hold anything.
  const Element* key(int64_t position, Element* copy) const {
    const Element* base = reinterpret_cast<const Element*>(a_.kv.k);
    if (a_.kv.block_size % kTile == 0) return whole(base, position, copy);
    const int64_t words = a_.kv.head_dim / Type::kWordElements;  // 32-bit words of a position
    constexpr int64_t kHalf = kTile / 2;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = position + half * kHalf;
      if (first >= end_ || first + kHalf <= begin_) continue;
      const Element* from = at(base, first);
      Element* to = copy + half * kHalf * Type::kWordElements;
      for (int64_t w = 0; w < words; ++w) {
        copy_shared(to + w * kTile * Type::kWordElements, from + w * kHalf * Type::kWordElements,
                    kHalf * 4);
      }
    }
    return copy;
  }

  const Element* value(int64_t position, Element* copy) const {
    const Element* base = reinterpret_cast<const Element*>(a_.kv.v);
    if (a_.kv.block_size % kTile == 0) return whole(base, position, copy);
    const int64_t count = kTile / 2 * a_.kv.head_dim;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = position + half * kTile / 2;
      if (first >= end_ || first + kTile / 2 <= begin_) continue;
      copy_shared(copy + half * count, at(base, first), count * int64_t(sizeof(Element)));
    }
    return copy;
  }

 private:
  const Element* at(const Element* base, int64_t position) const {
    const int64_t block = a_.block_table[position / a_.kv.block_size];
    return base + piece_offset(a_.kv, block, kv_head_) +
           position % a_.kv.block_size * a_.kv.head_dim;
  }

  const Element* whole(const Element* base, int64_t position, Element* copy) const {
    const Element* tile = at(base, position);
    if (!kReadThroughCopy) return tile;
    copy_shared(copy, tile, kTile * a_.kv.head_dim * int64_t(sizeof(Element)));
    return copy;
  }

  const AttentionArgs& a_;
  const int64_t kv_head_;
  const int64_t begin_;
  const int64_t end_;
};

}  // namespace takt::TAKT_ISA
