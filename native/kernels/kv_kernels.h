// What each build of kv_isa.cc offers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

// Tokens of one head that follow each other: their k, or v, [count] rows of [head_dim] floats.
struct KVRows {
  const float* x;
  int64_t stride;  // floats from one row to the next
  int64_t head_dim;
  int count;
};

struct KVKernels {
  // Rows that begin at position `first` of a tile. Positions outside stay as they are.
  void (*store_bf16_key)(const KVRows& rows, int first, std::byte* tile);
  void (*store_bf16_value)(const KVRows& rows, int first, std::byte* tile);
  // The same, and the rows' scales, the first of which is at `scales`.
  void (*store_int8_key)(const KVRows& rows, int first, std::byte* tile, std::byte* scales);
  void (*store_int8_value)(const KVRows& rows, int first, std::byte* tile, std::byte* scales);
  // Fills a row's codes [n], plus kInt8Zero, and gives their bf16 scale: the largest element's size
  // over 127, rounded up, so that no code is beyond 127. Rows below 2^-49 become zeros with scale
  // 0; the scale of one that holds an infinity or NaN is infinite, and attention makes NaN of it.
  uint16_t (*encode_int8)(const float* x, int64_t n, uint8_t* codes);
};
TAKT_DECLARE_ISA_TABLE(KVKernels, kKVKernels)

}  // namespace takt
