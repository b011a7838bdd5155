#include <cstdint>

#include "kernels/attention.h"
#include "kernels/float16.h"
#include "kernels/kv_layout.h"

namespace takt {
namespace {

// Rounds to nearest, ties to even; NaN stays NaN.
uint16_t bf16_from_float(float x) {
  const uint32_t bits = bits_from_float(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Two threads may store equal values at once. On every target a relaxed store is a plain one.
template <class T>
void store_shared(T* to, T value) {
  __atomic_store(to, &value, __ATOMIC_RELAXED);
}

void store_bf16(const KVLayer& kv, int64_t piece, int64_t position, const float* k,
                const float* v) {
  const int64_t lanes = key_lanes(kv.block_size);
  auto* key = reinterpret_cast<uint16_t*>(kv.k) + piece +
              position / lanes * lanes * kv.head_dim + position % lanes * 2;
  auto* value = reinterpret_cast<uint16_t*>(kv.v) + piece + position / 2 * 2 * kv.head_dim +
                position % 2;
  for (int64_t d = 0; d < kv.head_dim; ++d) {
    store_shared(key + d / 2 * 2 * lanes + d % 2, bf16_from_float(k[d]));
    store_shared(value + 2 * d, bf16_from_float(v[d]));
  }
}

void store_f32(const KVLayer& kv, int64_t piece, int64_t position, const float* k,
               const float* v) {
  const int64_t lanes = key_lanes(kv.block_size);
  float* key = reinterpret_cast<float*>(kv.k) + piece + position / lanes * lanes * kv.head_dim +
               position % lanes;
  float* value = reinterpret_cast<float*>(kv.v) + piece + position * kv.head_dim;
  for (int64_t d = 0; d < kv.head_dim; ++d) {
    store_shared(key + d * lanes, k[d]);
    store_shared(value + d, v[d]);
  }
}

}  // namespace

void kv_store(const KVLayer& kv, int64_t slot, int64_t kv_head, const float* k, const float* v) {
  const int64_t piece = piece_offset(kv, slot / kv.block_size, kv_head);
  const int64_t position = slot % kv.block_size;
  if (kv.type == KVType::kBF16) {
    store_bf16(kv, piece, position, k, v);
  } else {
    store_f32(kv, piece, position, k, v);
  }
}

}  // namespace takt
