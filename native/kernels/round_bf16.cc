#include "kernels/round_bf16.h"

#include "kernels/round_bf16_kernels.h"

namespace takt {

void round_row_to_bf16(const float* x, int64_t k, uint16_t* out) {
  static constexpr const RoundBf16Kernels* kTables[] = TAKT_ISA_TABLES(kRoundBf16Kernels);
  kTables[isa_index()]->row(x, k, out);
  if (k % 2 != 0) out[k] = 0;
}

}  // namespace takt
