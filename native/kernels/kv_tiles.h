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
// elements d to d + 15, or to d + 7 with `kHalf`. Scores and weights of V are to be multiplied by
// kScale. kRounds says that queries and weights of V are rounded to bf16 too: a matrix unit can
// multiply them.
struct BF16Tile {
  using Element = uint16_t;
  static constexpr KVType kType = KVType::kBF16;
  static constexpr float kScale = 1.0f;
  static constexpr bool kRounds = true;
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

// Types whose elements lie one by one; kLoad and kLoadHalf widen 16 and 8 of them.
template <class T, Vec16 (*kLoad)(const T*), Vec16 (*kLoadHalf)(const T*)>
struct PlainTile {
  using Element = T;
  static TAKT_VEC_INLINE Vec16Pair key(const T* tile, int64_t pair) {
    const T* p = tile + 2 * kTile * pair;
    return {kLoad(p), kLoad(p + kTile)};
  }
  template <bool kHalf>
  static TAKT_VEC_INLINE Vec16Pair value(const T* tile, int64_t head_dim, int64_t pair,
                                         int64_t d) {
    const T* p = tile + 2 * pair * head_dim + d;
    if constexpr (kHalf) return {kLoadHalf(p), kLoadHalf(p + head_dim)};
    return {kLoad(p), kLoad(p + head_dim)};
  }
};

TAKT_VEC_INLINE Vec16 load_f32_half(const float* p) { return load_first(p, 8); }

struct F32Tile : PlainTile<float, load, load_f32_half> {
  static constexpr KVType kType = KVType::kF32;
  static constexpr float kScale = 1.0f;
  static constexpr bool kRounds = false;
};
struct E4M3Tile : PlainTile<uint8_t, load_e4m3, load_e4m3_half> {
  static constexpr KVType kType = KVType::kFP8E4M3;
  static constexpr float kScale = 256.0f;
  static constexpr bool kRounds = false;
};

// Read as bytes (int8_factors.h), not widened; each position has a scale in bf16.
struct Int8Tile {
  using Element = uint8_t;
  static constexpr KVType kType = KVType::kInt8;
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
      : kv_(a.kv),
        block_table_(a.block_table),
        block_size_(uint32_t(a.kv.block_size)),
        block_bytes_(int64_t(a.kv.block_bytes())),
        head_(kv_head * int64_t(a.kv.piece_bytes())),
        scales_(scales_offset(a.kv, 0, kv_head)),
        begin_(begin),
        end_(end),
        whole_(a.kv.block_size % kTile == 0) {}

  // Tiles lie in the cache as the kernels want them, so that no copy is made.
  bool in_place() const { return !kReadThroughCopy && whole_; }

  // The tile that starts at `position`; where not in place, it is copied to `copy`, which has room
  // for kTile * head_dim elements. Positions outside [begin, end) hold anything.
  const Element* key(int64_t position, Element* copy) const {
    if (whole_) return whole(kv_.k, position, copy);
    constexpr int64_t kHalf = kTile / 2;
    constexpr int64_t kGroup = summed_group(Type::kType);
    constexpr int64_t kBytes = kGroup * int64_t(sizeof(Element));
    for_each_half(position, [&](int64_t half, Place place) {
      const std::byte* from = at(kv_.k, place);
      auto* to = reinterpret_cast<std::byte*>(copy) + half * kHalf * kBytes;
      for (int64_t g = 0; g < kv_.head_dim / kGroup; ++g) {
        copy_shared(to + g * kTile * kBytes, from + g * kHalf * kBytes, kHalf * kBytes);
      }
    });
    return copy;
  }

  const Element* value(int64_t position, Element* copy) const {
    if (whole_) return whole(kv_.v, position, copy);
    const int64_t count = kTile / 2 * kv_.head_dim;
    for_each_half(position, [&](int64_t half, Place place) {
      copy_shared(copy + half * count, at(kv_.v, place), count * int64_t(sizeof(Element)));
    });
    return copy;
  }

  // Scales of the tile's positions; anything for those outside [begin, end).
  Vec16 key_scales(int64_t position) const { return scales(kv_.k, position); }
  Vec16 value_scales(int64_t position) const { return scales(kv_.v, position); }

  // Asks for a tile to be brought near: it is wanted soon.
  void prefetch(const Element* tile) const {
    const int64_t bytes = kTile * kv_.head_dim * int64_t(sizeof(Element));
    const auto* line = reinterpret_cast<const std::byte*>(tile);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i);
  }

 private:
  struct Place {
    int64_t block;  // of the cache
    int64_t slot;   // in the block
  };

  // Blocks of 2^31 tokens and more there are not, and a 32-bit division is a short one.
  Place place(int64_t position) const {
    const uint32_t block = uint32_t(position) / block_size_;
    return {block_table_[block], int64_t(uint32_t(position) - block * block_size_)};
  }

  const std::byte* at(const std::byte* base, Place place) const {
    return base + place.block * block_bytes_ + head_ +
           place.slot * kv_.head_dim * int64_t(sizeof(Element));
  }

  template <class F>
  TAKT_VEC_INLINE void for_each_half(int64_t position, F f) const {
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = position + half * kTile / 2;
      if (first < end_ && first + kTile / 2 > begin_) f(half, place(first));
    }
  }

  const Element* whole(const std::byte* base, int64_t position, Element* copy) const {
    const auto* tile = reinterpret_cast<const Element*>(at(base, place(position)));
    if (!kReadThroughCopy) return tile;
    copy_shared(copy, tile, kTile * kv_.head_dim * int64_t(sizeof(Element)));
    return copy;
  }

  Vec16 scales(const std::byte* base, int64_t position) const {
    const auto of = [&](Place p) { return base + p.block * block_bytes_ + scales_ + p.slot * 2; };
    uint16_t copy[kTile] = {};
    if (whole_) {
      copy_shared(copy, of(place(position)), sizeof(copy));
    } else {
      for_each_half(position, [&](int64_t half, Place place) {
        copy_shared(copy + half * kTile / 2, of(place), sizeof(copy) / 2);
      });
    }
    return load_bf16(copy);
  }

  const KVLayer& kv_;
  const int32_t* block_table_;
  const uint32_t block_size_;
  const int64_t block_bytes_;
  const int64_t head_;    // bytes from a block to the head's elements
  const int64_t scales_;  // bytes from a block to the head's scales
  const int64_t begin_;
  const int64_t end_;
  const bool whole_;
};

}  // namespace takt::TAKT_ISA
