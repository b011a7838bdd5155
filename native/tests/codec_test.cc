// Codecs of an all-reduce against the plain formula, on every instruction set.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/codec.h"
#include "kernels/linear.h"
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

// The bf16 value next to x: of the two around it the nearer, of equally near ones the even.
uint16_t nearest(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const auto low = uint16_t(bits >> 16);
  if ((bits & 0xffff) == 0) return low;
  const auto high = uint16_t(low + 1);  // of larger magnitude
  const uint32_t rest = bits & 0xffff;
  if (rest != 0x8000) return rest < 0x8000 ? low : high;
  return low % 2 == 0 ? low : high;
}

void bf16_is_rounded_to_nearest_even() {
  std::vector<float> x = {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f,
                          std::numeric_limits<float>::infinity(), 1e-40f};
  Random random(4);
  while (x.size() < 1001) x.push_back(random.between(-1, 1) * std::exp(random.between(-60, 60)));
  std::vector<uint16_t> coded(x.size());
  encode_bf16(x.data(), int64_t(x.size()), coded.data());
  for (size_t i = 0; i < x.size(); ++i) CHECK(coded[i] == nearest(x[i]), "%g", double(x[i]));
  const float nan = std::nanf("");
  encode_bf16(&nan, 1, coded.data());
  CHECK(std::isnan(widened(coded[0])));
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
  encode_bf16(x.data(), kCount, coded.data());
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
    takt::test::bf16_is_rounded_to_nearest_even();
    takt::test::sums_are_exact_to_a_rounding();
  }
}
