// What each build of attention_isa.cc and of int8_attention_isa.cc offers; attention.h has the
// contracts.
#pragma once
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/isa.h"

namespace takt {

struct AttentionKernels {
  // Of a cache of any other type than int8.
  void (*split)(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                const int32_t* positions, const float* const* q, float* const* out,
                AttentionNext next);
  void (*merge)(const float* next, int64_t head_dim, float* merged);
  void (*finish)(const float* merged, int64_t head_dim, float* out);
};
TAKT_DECLARE_ISA_TABLE(AttentionKernels, kAttentionKernels)

// Of a cache of int8.
struct Int8AttentionKernels {
  void (*split)(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                const int32_t* positions, const float* const* q, float* const* out,
                AttentionNext next);
};
TAKT_DECLARE_ISA_TABLE(Int8AttentionKernels, kInt8AttentionKernels)

#if defined(TAKT_X86_ISAS)
namespace amx {
// `split` of the table, equal to it bit for bit; or nothing and false: for few rows, or a cache
// that the unit cannot read in place.
bool split_of_many(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                   const int32_t* positions, const float* const* q, float* const* out);
bool int8_split_of_many(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                        const int32_t* positions, const float* const* q, float* const* out);
}  // namespace amx
#endif

}  // namespace takt
