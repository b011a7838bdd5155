// Activations to bf16; written for the compiler to vectorise.
#include "kernels/round_bf16.h"
#include "kernels/round_bf16_kernels.h"

namespace takt::TAKT_ISA {
namespace {

void round_row(const float* x, int64_t k, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = round_to_bf16(x[i]);
}

}  // namespace

const RoundBf16Kernels kRoundBf16Kernels = {&round_row};

}  // namespace takt::TAKT_ISA
