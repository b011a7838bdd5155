// What each build of kv_isa.cc offers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"

namespace takt {

struct KVKernels {
  // k and v of `count` tokens of one head, the first at position `first` of a tile of a cache of
  // bf16; rows of floats lie `stride` apart. Positions outside stay as they are.
  void (*store_tile)(const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                     int64_t head_dim, int first, int count, std::byte* k_tile, std::byte* v_tile);
};
TAKT_DECLARE_ISA_TABLE(KVKernels, kKVKernels)

}  // namespace takt
