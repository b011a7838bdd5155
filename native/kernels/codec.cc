#include "kernels/codec.h"

#include "kernels/codec_kernels.h"

namespace takt {
namespace {

const CodecKernels& kernels() {
  static constexpr const CodecKernels* kTables[] = TAKT_ISA_TABLES(kCodecKernels);
  return *kTables[isa_index()];
}

}  // namespace

void add_bf16(const uint16_t* x, int64_t n, float* sum) { kernels().add_bf16(x, n, sum); }

void add_int8(const int8_t* q, const float* scale, int64_t n, float* sum) {
  kernels().add_int8(q, scale, n, sum);
}

}  // namespace takt
