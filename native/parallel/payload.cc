#include "parallel/payload.h"

#include <stdexcept>

#include "kernels/activation.h"
#include "kernels/codec.h"
#include "kernels/round_bf16.h"

namespace takt {

static_assert(kPayloadGroup == kGroup);

Payload payload_of(const std::string& name) {
  if (name == "float32") return Payload::kF32;
  if (name == "bfloat16") return Payload::kBF16;
  if (name == "float16") return Payload::kF16;
  if (name == "int8") return Payload::kInt8;
  throw std::invalid_argument("no payload named '" + name +
                              "'; known: float32, bfloat16, float16, int8");
}

void CompressedRow::write(const float* x, int64_t col0, int64_t col1) const {
  const int64_t n = col1 - col0;
  if (payload_ == Payload::kBF16) return round_row_to_bf16(x, n, halves(col0));
  if (payload_ == Payload::kF16) return round_row_to_f16(x, n, halves(col0));
  quantize_groups(x, n, bytes(col0), scales(col0));
}

void CompressedRow::read(int64_t col0, int64_t col1, float* out) const {
  const int64_t n = col1 - col0;
  if (payload_ == Payload::kBF16) return expand_bf16(halves(col0), n, out);
  if (payload_ == Payload::kF16) return expand_f16(halves(col0), n, out);
  expand_int8(bytes(col0), scales(col0), n, out);
}

void CompressedRow::add(int64_t col0, int64_t col1, float* sum) const {
  const int64_t n = col1 - col0;
  if (payload_ == Payload::kBF16) return add_bf16(halves(col0), n, sum);
  if (payload_ == Payload::kF16) return add_f16(halves(col0), n, sum);
  add_int8(bytes(col0), scales(col0), n, sum);
}

}  // namespace takt
