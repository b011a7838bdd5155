#include "kernels/kv.h"

#include <algorithm>
#include <cmath>
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

// A group's elements lie side by side: bf16 go in pairs.
template <int64_t kGroup, class T>
void store_key(const KVLayer& kv, std::byte* piece, int64_t position, const Row<T>& row) {
  using Stored = std::conditional_t<kGroup == 2, uint32_t, T>;
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

// Rounds to nearest, ties to even: adding 1.5 * 2^23 leaves no bits behind the point.
uint8_t int8_from_float(float x, float inverse) {
  const float shift = 0x1.8p23f;
  return uint8_t(int8_t(int32_t((x * inverse + shift) - shift)));
}

template <class T, class Encode>
void encode(const float* x, int64_t n, Row<T>* row, Encode encode_one) {
  for (int64_t d = 0; d < n; ++d) row->codes[d] = encode_one(x[d]);
}

// Fills the codes and gives their bf16 scale: the largest element's size over 127, rounded up, so
// that no code is beyond 127. Rows that are smaller than any number that matters become zeros with
// scale 0; a row that holds an infinity or NaN reads as infinities.
uint16_t encode_int8(const float* x, int64_t n, Row<uint8_t>* row) {
  float largest = 0.0f;
  bool finite = true;
  for (int64_t d = 0; d < n; ++d) {
    const float size = std::fabs(x[d]);
    finite &= size <= 0x1.fffffep127f;
    largest = size > largest ? size : largest;
  }
  const bool zero = largest < 0x1p-100f;
  if (!finite || zero) {
    encode(x, n, row, [&](float) { return uint8_t(finite ? 0 : 1); });
    return finite ? 0 : 0x7f80;
  }
  const auto scale = uint16_t((bits_from_float(largest / 127.0f) + 0xffffu) >> 16);
  const float inverse = 1.0f / float_from_bf16(scale);
  encode(x, n, row, [&](float v) { return int8_from_float(v, inverse); });
  return scale;
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
  return kv.type == KVType::kBF16 && kv.block_size % kTile == 0;
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
      store_shared(kv.k + scale, encode_int8(k, n, &key));
      store_shared(kv.v + scale, encode_int8(v, n, &value));
      return store.template operator()<1>(key, value);
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
      const int64_t position = slots[i] % kv.block_size, first = position % kTile;
      const int64_t tile = piece_offset(kv, slots[i] / kv.block_size, kv_head) +
                           (position - first) * kv.head_dim * int64_t(sizeof(uint16_t));
      kernels().store_tile(first_k, k_stride, first_v, v_stride, kv.head_dim, int(first),
                           int(rows), kv.k + tile, kv.v + tile);
    }
    i += rows;
  }
}

}  // namespace takt
