// One layer of the paged KV cache: its element types, its bytes, and writing to it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace takt {

enum class KVType : uint8_t {
  kBF16,    // rounded to nearest even, and to 0 below 2^-56 (round_bf16.h)
  kF32,
  kFP8E4M3,  // rounded to nearest even, saturated at 448
  kInt8,     // -127 to 127 times a bf16 scale of each token and head
};

constexpr size_t element_bytes(KVType type) {
  return type == KVType::kF32 ? 4 : type == KVType::kBF16 ? 2 : 1;
}
// Of the scale that a token of one head has beside its elements.
constexpr size_t scale_bytes(KVType type) { return type == KVType::kInt8 ? 2 : 0; }

// One layer's K and V, each [num_blocks] of blocks that hold [num_kv_heads, block_size, head_dim]
// elements and then [num_kv_heads, block_size] scales. The order of elements inside a (block, head)
// piece is the kernels' own business (kv_layout.h).
struct KVLayer {
  std::byte* k;
  std::byte* v;
  KVType type;
  int64_t num_kv_heads;
  int64_t block_size;
  int64_t head_dim;

  size_t piece_bytes() const { return size_t(block_size * head_dim) * element_bytes(type); }
  size_t block_bytes() const {
    return size_t(num_kv_heads) * (piece_bytes() + size_t(block_size) * scale_bytes(type));
  }
};

// Largest head_dim; it is a multiple of 8. block_size is a multiple of 8 too.
inline constexpr int64_t kMaxHeadDim = 256;

// Writes one token's k and v (each [head_dim]) of one head into a slot. Idempotent: may be done by
// two threads at once with equal values (stores are relaxed atomics where a sanitizer watches).
void kv_store(const KVLayer& kv, int64_t slot, int64_t kv_head, const float* k, const float* v);

// The same for `count` tokens of one head whose rows lie `k_stride` and `v_stride` floats apart:
// slots that follow each other are written together.
void kv_store_rows(const KVLayer& kv, const int64_t* slots, int64_t count, int64_t kv_head,
                   const float* k, int64_t k_stride, const float* v, int64_t v_stride);

}  // namespace takt
