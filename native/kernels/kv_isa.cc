// Tiles of the KV cache, written line by line. A token alone would touch every line of its tile.
#include <cstdint>
#include <cstring>

#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "kernels/transpose.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {
namespace {

constexpr int kPositions = int(kTile);
constexpr int64_t kRow = kMaxHeadDim + 2 * kLanes;  // room behind the last element

// Tokens' elements in bf16; a pair of them is one word of the cache.
struct Rows {
  alignas(64) uint16_t codes[kPositions][kRow];
};

void round_rows(const float* x, int64_t stride, int64_t head_dim, int count, Rows* rows) {
  for (int r = 0; r < count; ++r) {
    for_each_vector(head_dim, [&](int64_t d, int lanes) {
      store_rounded_bf16(rows->codes[r] + d, load_some(x + r * stride + d, lanes));
    });
  }
}

// [head_dim / 2][16] words of pairs of elements.
void store_key(const Rows& rows, int64_t head_dim, int first, int count, std::byte* tile) {
  for_each_vector(head_dim / 2, [&](int64_t pair, int pairs) {
    Vec16 words[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      std::memcpy(&words[r], rows.codes[r < count ? r : 0] + 2 * pair, sizeof(words[r]));
    }
    transpose(words);
    for (int i = 0; i < pairs; ++i) {
      std::byte* to = tile + ((pair + i) * kTile + first) * int64_t(sizeof(uint32_t));
      store_some(reinterpret_cast<float*>(to), words[i], count);
    }
  });
}

// [8][head_dim] words of pairs of positions.
void store_value(const Rows& rows, int64_t head_dim, int first, int count, std::byte* tile) {
  auto* codes = reinterpret_cast<uint16_t*>(tile);
  const auto store_one = [&](int r) {
    const int p = first + r;
    uint16_t* __restrict to = codes + p / 2 * head_dim * 2 + p % 2;
    for (int64_t d = 0; d < head_dim; ++d) to[2 * d] = rows.codes[r][d];
  };
  int r = 0;
  if (first % 2 != 0 && r < count) store_one(r++);
  for (; r + 2 <= count; r += 2) {
    const uint16_t* even = rows.codes[r];
    const uint16_t* odd = rows.codes[r + 1];
    uint16_t* __restrict to = codes + (first + r) / 2 * head_dim * 2;
    for (int64_t d = 0; d < head_dim; ++d) {
      to[2 * d] = even[d];
      to[2 * d + 1] = odd[d];
    }
  }
  if (r < count) store_one(r);
}

void store_tile(const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                int64_t head_dim, int first, int count, std::byte* k_tile, std::byte* v_tile) {
  Rows rows;
  round_rows(k, k_stride, head_dim, count, &rows);
  store_key(rows, head_dim, first, count, k_tile);
  round_rows(v, v_stride, head_dim, count, &rows);
  store_value(rows, head_dim, first, count, v_tile);
}

}  // namespace

const KVKernels kKVKernels = {&store_tile};

}  // namespace takt::TAKT_ISA
