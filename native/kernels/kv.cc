#include "kernels/kv.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/float16.h"
#include "kernels/float8.h"
#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "kernels/round_bf16.h"

namespace takt {
namespace {

// Two threads may store equal values at once. On every target a relaxed store is a plain one.
template <class T>
void store_shared(std::byte* to, T value) {
  __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELAXED);
}

// One token's elements as the cache has them, before they are scattered into their places.
template <class T>
struct Row {
  T codes[kMaxHeadDim];
};

// A group's elements lie side by side in a word.
template <int64_t kGroup, class T>
void store_key(const KVLayer& kv, std::byte* piece, int64_t position, const Row<T>& row) {
  using Stored = std::conditional_t<kGroup == 1, T, uint32_t>;
  static_assert(sizeof(Stored) == kGroup * sizeof(T));
  const int64_t lanes = key_lanes(kv.block_size);
  const int64_t first = position / lanes * lanes * kv.head_dim + position % lanes * kGroup;
  for (int64_t d = 0; d < kv.head_dim; d += kGroup) {
    Stored group;
    std::memcpy(&group, row.codes + d, sizeof(group));
    store_shared(piece + (first + d * lanes) * int64_t(sizeof(T)), group);
  }
}

template <int64_t kGroup, class T>
void store_value(const KVLayer& kv, std::byte* piece, int64_t position, const Row<T>& row) {
  const int64_t first = position / kGroup * kGroup * kv.head_dim + position % kGroup;
  for (int64_t d = 0; d < kv.head_dim; ++d) {
    store_shared(piece + (first + d * kGroup) * int64_t(sizeof(T)), row.codes[d]);
  }
}

template <class T, class Encode>
void encode(const float* x, int64_t n, Row<T>* row, Encode encode_one) {
  for (int64_t d = 0; d < n; ++d) row->codes[d] = encode_one(x[d]);
}

// A tile's own lines are written as they are; below this a token's elements go one by one, each to
// its line.
constexpr int64_t kMinTileRows = 4;

const KVKernels& kernels() {
  static constexpr const KVKernels* kTables[] = TAKT_ISA_TABLES_WITH_BF16(kKVKernels);
  return *kTables[isa_index()];
}

// How many of `count` slots follow the first one in its tile, itself included.
int64_t rows_of_tile(const int64_t* slots, int64_t count) {
  const int64_t most = std::min(count, kTile - slots[0] % kTile);
  int64_t rows = 1;
  while (rows < most && slots[rows] == slots[0] + rows) ++rows;
  return rows;
}

// Whether whole vectors may be stored: the thread sanitizer is shown relaxed stores of elements.
bool stores_tiles(const KVLayer& kv) {
#if defined(__SANITIZE_THREAD__)
  return false;
#endif
  return summed_group(kv.type) > 1 && kv.block_size % kTile == 0;
}

// Tokens whose slots follow each other in one tile.
void store_in_tile(const KVLayer& kv, int64_t slot, int64_t kv_head, const KVRows& k,
                   const KVRows& v) {
  const int64_t block = slot / kv.block_size, position = slot % kv.block_size;
  const int first = int(position % kTile);
  const int64_t tile = piece_offset(kv, block, kv_head) +
                       (position - first) * kv.head_dim * int64_t(element_bytes(kv.type));
  if (kv.type == KVType::kBF16) {
    kernels().store_bf16_key(k, first, kv.k + tile);
    kernels().store_bf16_value(v, first, kv.v + tile);
  } else {
    const int64_t scales = scales_offset(kv, block, kv_head) + 2 * position;
    kernels().store_int8_key(k, first, kv.k + tile, kv.k + scales);
    kernels().store_int8_value(v, first, kv.v + tile, kv.v + scales);
  }
}

}  // namespace

void kv_store(const KVLayer& kv, int64_t slot, int64_t kv_head, const float* k, const float* v) {
  const int64_t block = slot / kv.block_size;
  const int64_t position = slot % kv.block_size;
  const int64_t piece = piece_offset(kv, block, kv_head);
  const int64_t n = kv.head_dim;
  const auto store = [&]<int64_t kGroup, class T>(const Row<T>& key, const Row<T>& value) {
    store_key<kGroup>(kv, kv.k + piece, position, key);
    store_value<kGroup>(kv, kv.v + piece, position, value);
  };
  switch (kv.type) {
    case KVType::kBF16: {
      Row<uint16_t> key, value;
      round_row_to_bf16(k, n, key.codes);
      round_row_to_bf16(v, n, value.codes);
      return store.template operator()<2>(key, value);
    }
    case KVType::kF32: {
      Row<uint32_t> key, value;
      encode(k, n, &key, bits_from_float);
      encode(v, n, &value, bits_from_float);
      return store.template operator()<1>(key, value);
    }
    case KVType::kFP8E4M3: {
      Row<uint8_t> key, value;
      encode(k, n, &key, e4m3_from_float);
      encode(v, n, &value, e4m3_from_float);
      return store.template operator()<1>(key, value);
    }
    case KVType::kInt8: {
      Row<uint8_t> key, value;
      const int64_t scale = scales_offset(kv, block, kv_head) + 2 * position;
      store_shared(kv.k + scale, kernels().encode_int8(k, n, key.codes));
      store_shared(kv.v + scale, kernels().encode_int8(v, n, value.codes));
      return store.template operator()<4>(key, value);
    }
  }
}

void kv_store_rows(const KVLayer& kv, const int64_t* slots, int64_t count, int64_t kv_head,
                   const float* k, int64_t k_stride, const float* v, int64_t v_stride) {
  const bool tiles = stores_tiles(kv);
  for (int64_t i = 0; i < count;) {
    const int64_t rows = tiles ? rows_of_tile(slots + i, count - i) : 1;
    const float* first_k = k + i * k_stride;
    const float* first_v = v + i * v_stride;
    if (rows < kMinTileRows) {
      for (int64_t r = 0; r < rows; ++r) {
        kv_store(kv, slots[i + r], kv_head, first_k + r * k_stride, first_v + r * v_stride);
      }
    } else {
      store_in_tile(kv, slots[i], kv_head, {first_k, k_stride, kv.head_dim, int(rows)},
                    {first_v, v_stride, kv.head_dim, int(rows)});
    }
    i += rows;
  }
}

}  // namespace takt
