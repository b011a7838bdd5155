#include "kernels/attention.h"

#include "kernels/attention_kernels.h"

namespace takt {
namespace {

// bf16 is widened to multiply in fp32, so that AVX512_BF16 has nothing to add.
const AttentionKernels& kernels() {
  static constexpr const AttentionKernels* kTables[] =
      TAKT_ISA_TABLES(kAttentionKernels);
  return *kTables[isa_index()];
}

}  // namespace

void attention_split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                     const int32_t* positions, const float* const* q, float* const* out) {
  kernels().split(a, kv_head, split, m, positions, q, out);
}

void attention_merge(const float* next, int64_t head_dim, float* merged) {
  kernels().merge(next, head_dim, merged);
}

void attention_finish(const float* merged, int64_t head_dim, float* out) {
  kernels().finish(merged, head_dim, out);
}

}  // namespace takt
