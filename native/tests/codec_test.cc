// Codecs of an all-reduce against the plain formula, on every instruction set.
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/activation.h"
#include "kernels/codec.h"
#include "kernels/float16.h"
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

  round_row_to_f16(x.data(), kCount, coded.data());
  expected = sum;
  for (int i = 0; i < kCount; ++i) expected[size_t(i)] += float_from_half(coded[size_t(i)]);
  got = sum;
  add_f16(coded.data(), kCount, got.data());
  CHECK(got == expected);
  for (int i = 0; i < kCount; ++i) CHECK(coded[size_t(i)] == half_from_float(x[size_t(i)]));

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
  std::vector<int8_t> q(kCount);
  std::vector<float> scales(kCount / kGroup);
  quantize_groups(x.data(), kCount, q.data(), scales.data());
  CHECK(std::memcmp(q.data(), q8.q, size_t(kCount)) == 0);
  CHECK(std::memcmp(scales.data(), q8.scale, scales.size() * sizeof(float)) == 0);
}

// Pieces of quantize_groups join without a seam, and expanding is adding to zeros.
void long_rows_are_as_short_ones() {
  Random random(6);
  constexpr int64_t kCount = 4096 + 64;
  std::vector<float> x, expanded(kCount), added(kCount, 0.0f);
  for (int i = 0; i < kCount; ++i) x.push_back(random.between(-4, 4));
  std::vector<int8_t> q(kCount), part(kGroup);
  std::vector<float> scales(kCount / kGroup);
  quantize_groups(x.data(), kCount, q.data(), scales.data());
  for (int64_t at = 0; at < kCount; at += kGroup) {
    float scale;
    quantize_groups(x.data() + at, kGroup, part.data(), &scale);
    CHECK(scale == scales[size_t(at / kGroup)]);
    CHECK(std::memcmp(part.data(), q.data() + at, size_t(kGroup)) == 0);
  }
  expand_int8(q.data(), scales.data(), kCount, expanded.data());
  add_int8(q.data(), scales.data(), kCount, added.data());
  CHECK(expanded == added);
  std::vector<uint16_t> coded(kCount);
  round_row_to_bf16(x.data(), kCount, coded.data());
  expand_bf16(coded.data(), kCount, expanded.data());
  for (int i = 0; i < kCount; ++i) CHECK(expanded[size_t(i)] == widened(coded[size_t(i)]));
  // A number that is no multiple of a vector.
  round_row_to_f16(x.data(), kCount - 3, coded.data());
  expand_f16(coded.data(), kCount - 3, expanded.data());
  for (int i = 0; i < kCount - 3; ++i) {
    CHECK(expanded[size_t(i)] == float_from_half(half_from_float(x[size_t(i)])));
  }
}

}  // namespace
}  // namespace takt::test

int main() {
  for (const char* isa : takt::available_isas()) {
    takt::select_isa(isa);
    takt::test::sums_are_exact_to_a_rounding();
    takt::test::long_rows_are_as_short_ones();
  }
}
