#include "kernels/attention.h"

#include "kernels/attention_kernels.h"

namespace takt {
namespace {

// bf16 is widened to multiply in fp32: AVX512_BF16's sums are not those of AMX (attention_isa.cc),
// and on Sapphire Rapids it multiplies at 72 GFLOP/s where fp32 does at 117.
const AttentionKernels& kernels() {
  static constexpr const AttentionKernels* kTables[] =
      TAKT_ISA_TABLES(kAttentionKernels);
  return *kTables[isa_index()];
}

const Int8AttentionKernels& int8_kernels() {
  static constexpr const Int8AttentionKernels* kTables[] = TAKT_ISA_TABLES(kInt8AttentionKernels);
  return *kTables[isa_index()];
}

}  // namespace

void attention_split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                     const int32_t* positions, const float* const* q, float* const* out,
                     AttentionNext next) {
  if (a.kv.type == KVType::kInt8) {
#if defined(TAKT_X86_ISAS)
    if (selected_isa_has_tiles() &&
        amx::int8_split_of_many(a, kv_head, split, m, positions, q, out)) {
      return;
    }
#endif
    return int8_kernels().split(a, kv_head, split, m, positions, q, out, next);
  }
#if defined(TAKT_X86_ISAS)
  if (selected_isa_has_tiles() && amx::split_of_many(a, kv_head, split, m, positions, q, out)) {
    return;
  }
#endif
  kernels().split(a, kv_head, split, m, positions, q, out, next);
}

void attention_merge(const float* next, int64_t head_dim, float* merged) {
  kernels().merge(next, head_dim, merged);
}

void attention_finish(const float* merged, int64_t head_dim, float* out) {
  kernels().finish(merged, head_dim, out);
}

}  // namespace takt
