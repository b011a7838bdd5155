// Codecs of an all-reduce against the plain formula, on every instruction set.
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/activation.h"
#include "kernels/codec.h"
#include "kernels/linear.h"
#include "kernels/round_bf16.h"
#include "program/memory.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt::test {
namespace {

float widened(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void sums_are_exact_to_a_rounding() {
  Random random(5);
  constexpr int64_t kCount = 96;
  std::vector<float> x, sum, expected;
  for (int i = 0; i < kCount; ++i) {
    x.push_back(random.between(-4, 4));
    sum.push_back(random.between(-4, 4));
  }
  std::vector<uint16_t> coded(kCount);
  round_row_to_bf16(x.data(), kCount, coded.data());
  expected = sum;
  for (int i = 0; i < kCount; ++i) expected[size_t(i)] += widened(coded[size_t(i)]);
  std::vector<float> got = sum;
  add_bf16(coded.data(), kCount, got.data());
  CHECK(got == expected);

  const Memory row(q8_row_bytes(kCount));
  quantize_row(x.data(), kCount, row.data());
  const Q8Row q8 = q8_row_at(row.data(), kCount);
  got = sum;
  add_int8(q8.q, q8.scale, kCount, got.data());
  for (int i = 0; i < kCount; ++i) {
    const float scale = q8.scale[i / kGroup];
    const float term = float(q8.q[i]) * scale;
    CHECK(got[size_t(i)] == sum[size_t(i)] + term, "value %d", i);
    CHECK(std::abs(term - x[size_t(i)]) <= 0.5001f * scale, "value %d", i);
  }
}

}  // namespace
}  // namespace takt::test

int main() {
  for (const char* isa : takt::available_isas()) {
    takt::select_isa(isa);
    takt::test::sums_are_exact_to_a_rounding();
  }
}
