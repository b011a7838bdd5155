#include "kernels/codec.h"

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/codec_kernels.h"
#include "kernels/quantize_kernels.h"

namespace takt {
namespace {

const CodecKernels& kernels() {
  static constexpr const CodecKernels* kTables[] = TAKT_ISA_TABLES(kCodecKernels);
  return *kTables[isa_index()];
}

}  // namespace

void round_row_to_f16(const float* x, int64_t n, uint16_t* out) { kernels().round_f16(x, n, out); }

void quantize_groups(const float* x, int64_t n, int8_t* q, float* scale) {
  static constexpr const QuantizeKernels* kTables[] = TAKT_ISA_TABLES(kQuantizeKernels);
  // Sums of a group are for products; here nobody reads them.
  constexpr int64_t kPiece = 1024;
  float scaled_sum[kPiece / kGroup];
  int16_t sum[kPiece / kHalfGroup];
  for (int64_t at = 0; at < n; at += kPiece) {
    kTables[isa_index()]->row(x + at, std::min(kPiece, n - at), q + at, scale + at / kGroup,
                              scaled_sum, sum);
  }
}

void expand_bf16(const uint16_t* x, int64_t n, float* out) { kernels().expand_bf16(x, n, out); }
void expand_f16(const uint16_t* x, int64_t n, float* out) { kernels().expand_f16(x, n, out); }
void expand_int8(const int8_t* q, const float* scale, int64_t n, float* out) {
  kernels().expand_int8(q, scale, n, out);
}

void add_bf16(const uint16_t* x, int64_t n, float* sum) { kernels().add_bf16(x, n, sum); }
void add_f16(const uint16_t* x, int64_t n, float* sum) { kernels().add_f16(x, n, sum); }
void add_int8(const int8_t* q, const float* scale, int64_t n, float* sum) {
  kernels().add_int8(q, scale, n, sum);
}

}  // namespace takt
