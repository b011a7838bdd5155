// Tiles of the KV cache, written line by line. A token alone would touch every line of its tile.
#include <cstdint>
#include <cstring>

#include "kernels/float16.h"
#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "kernels/transpose.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {
namespace {

constexpr int kPositions = int(kTile);
constexpr int64_t kRow = kMaxHeadDim + 2 * kLanes;  // room behind the last element

// Tokens' elements as the cache has them.
template <class T>
struct Codes {
  alignas(64) T row[kPositions][kRow];
};

void round_rows(const KVRows& rows, Codes<uint16_t>* codes) {
  for (int r = 0; r < rows.count; ++r) {
    for_each_vector(rows.head_dim, [&](int64_t d, int lanes) {
      store_rounded_bf16(codes->row[r] + d, load_some(rows.x + r * rows.stride + d, lanes));
    });
  }
}

// Rounds to nearest, ties to even: adding 1.5 * 2^23 leaves no bits behind the point.
uint8_t code_from_float(float x, float inverse) {
  const float shift = 0x1.8p23f;
  return uint8_t(int32_t((x * inverse + shift) - shift) + kInt8Zero);
}

uint16_t encode_int8(const float* __restrict x, int64_t n, uint8_t* __restrict codes) {
  const Vec16 zero = set1(0.0f);
  Vec16 largest = zero, spoilt = zero;
  for_each_vector(n, [&](int64_t d, int lanes) {
    const Vec16 v = load_some(x + d, lanes);
    largest = max(max(v, zero - v), largest);
    spoilt = spoilt + v * zero;
  });
  const float size = max_lanes(largest);
  const bool is_finite = sum_lanes(spoilt) == 0.0f;
  if (!is_finite || size < 0x1p-49f) {  // smaller than any bf16 that counts (round_bf16.h)
    std::memset(codes, kInt8Zero + (is_finite ? 0 : 1), size_t(n));
    return is_finite ? 0 : 0x7f80;
  }
  const auto scale = uint16_t((bits_from_float(size / 127.0f) + 0xffffu) >> 16);
  const float inverse = 1.0f / float_from_bf16(scale);
  for (int64_t d = 0; d < n; ++d) codes[d] = code_from_float(x[d], inverse);
  return scale;
}

void encode_rows(const KVRows& rows, Codes<uint8_t>* codes, std::byte* scales) {
  for (int r = 0; r < rows.count; ++r) {
    const uint16_t scale = encode_int8(rows.x + r * rows.stride, rows.head_dim, codes->row[r]);
    std::memcpy(scales + r * int(sizeof(scale)), &scale, sizeof(scale));
  }
}

// Elements that share a word of the cache.
template <class T>
inline constexpr int kGroup = int(sizeof(uint32_t) / sizeof(T));

// [head_dim / kGroup][16] words of elements.
template <class T>
void store_key(const Codes<T>& codes, int64_t head_dim, int first, int count, std::byte* tile) {
  for_each_vector(head_dim / kGroup<T>, [&](int64_t word, int num_words) {
    Vec16 words[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      std::memcpy(&words[r], codes.row[r < count ? r : 0] + kGroup<T> * word, sizeof(words[r]));
    }
    transpose(words);
    for (int i = 0; i < num_words; ++i) {
      std::byte* to = tile + ((word + i) * kTile + first) * int64_t(sizeof(uint32_t));
      store_some(reinterpret_cast<float*>(to), words[i], count);
    }
  });
}

// [16 / kGroup][head_dim] words of positions.
template <class T>
void store_value(const Codes<T>& codes, int64_t head_dim, int first, int count, std::byte* tile) {
  auto* const begin = reinterpret_cast<T*>(tile);
  int r = 0;
  while (r < count) {
    const int p = first + r;
    T* __restrict to = begin + p / kGroup<T> * head_dim * kGroup<T>;
    if (p % kGroup<T> != 0 || r + kGroup<T> > count) {
      for (int64_t d = 0; d < head_dim; ++d) to[kGroup<T> * d + p % kGroup<T>] = codes.row[r][d];
      ++r;
      continue;
    }
    for (int64_t d = 0; d < head_dim; ++d) {
      for (int i = 0; i < kGroup<T>; ++i) to[kGroup<T> * d + i] = codes.row[r + i][d];
    }
    r += kGroup<T>;
  }
}

void store_bf16_key(const KVRows& rows, int first, std::byte* tile) {
  Codes<uint16_t> codes;
  round_rows(rows, &codes);
  store_key(codes, rows.head_dim, first, rows.count, tile);
}
void store_bf16_value(const KVRows& rows, int first, std::byte* tile) {
  Codes<uint16_t> codes;
  round_rows(rows, &codes);
  store_value(codes, rows.head_dim, first, rows.count, tile);
}
void store_int8_key(const KVRows& rows, int first, std::byte* tile, std::byte* scales) {
  Codes<uint8_t> codes;
  encode_rows(rows, &codes, scales);
  store_key(codes, rows.head_dim, first, rows.count, tile);
}
void store_int8_value(const KVRows& rows, int first, std::byte* tile, std::byte* scales) {
  Codes<uint8_t> codes;
  encode_rows(rows, &codes, scales);
  store_value(codes, rows.head_dim, first, rows.count, tile);
}

}  // namespace

const KVKernels kKVKernels = {&store_bf16_key, &store_bf16_value, &store_int8_key,
                              &store_int8_value, &encode_int8};

}  // namespace takt::TAKT_ISA
