// bf16 rounding, and products of bf16 weights at the edges of the type.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/float16.h"
#include "kernels/linear.h"
#include "kernels/round_bf16.h"
#include "tests/check.h"
#include "tests/linear_reference.h"

namespace takt::test {
namespace {

uint16_t bf16_of(float x) { return uint16_t(bits_from_float(x) >> 16); }

void halves_round_to_nearest_even() {
  for (uint32_t half = 0; half < 0x7c00u; ++half) {
    const float x = float_from_half(uint16_t(half));
    CHECK(half_from_float(x) == half && half_from_float(-x) == (half | 0x8000u));
    const float next = half == 0x7bffu ? 65536.0f : float_from_half(uint16_t(half + 1));
    const float middle = x + (next - x) / 2;
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    CHECK(half_from_float(middle) == even, "%g", double(middle));
    CHECK(half_from_float(std::nextafter(middle, 0.0f)) == half);
    CHECK(half_from_float(std::nextafter(middle, 1e9f)) == half + 1);
  }
  CHECK(half_from_float(std::numeric_limits<float>::infinity()) == 0x7c00u);
  CHECK(std::isnan(float_from_half(half_from_float(std::nanf("")))));
}

void bf16_rounds_to_nearest_even_and_tiny_to_zero() {
  const float inputs[] = {1.0f,     1.0f + 0x1p-8f,          1.0f + 0x1p-8f + 0x1p-20f,
                          1.0f + 3 * 0x1p-8f, -2.5f,         0x1p-56f,
                          0x1.fffp-57f,        0x1.fcp-57f,   0x1p-140f};
  const float rounded[] = {1.0f, 1.0f, 1.0f + 0x1p-7f, 1.0f + 0x1p-6f, -2.5f,
                           0x1p-56f, 0x1p-56f, 0.0f, 0.0f};
  for (size_t i = 0; i < std::size(inputs); ++i) {
    CHECK(float_from_bf16(round_to_bf16(inputs[i])) == rounded[i], "%g", double(inputs[i]));
  }
  CHECK(float_from_bf16(round_to_bf16(std::numeric_limits<float>::max())) ==
        std::numeric_limits<float>::infinity());
  CHECK(std::isnan(float_from_bf16(round_to_bf16(float_from_bits(0x7fffffffu)))));
}

// A bf16 matrix of 16 rows, equal in all of them.
struct EqualRows {
  std::vector<uint16_t> raw;
  std::unique_ptr<PackedWeight> packed;

  explicit EqualRows(const std::vector<float>& row) {
    for (int r = 0; r < 16; ++r) {
      for (const float x : row) raw.push_back(bf16_of(x));
    }
    const RawMatrix view = {reinterpret_cast<const std::byte*>(raw.data()), QuantType::kBF16, 16,
                            int64_t(row.size())};
    packed = pack_weight({&view, 1}, nullptr, 1);
  }

  float times(const std::vector<float>& x) const {
    std::vector<uint16_t> rounded(x.size() + x.size() % 2);
    round_row_to_bf16(x.data(), int64_t(x.size()), rounded.data());
    const float* f32 = x.data();
    const uint16_t* bf16 = rounded.data();
    float out[16];
    linear(*packed, 0, 16, {nullptr, &f32, &bf16, 1, 0}, out, 16);
    return out[7];
  }
};

// The odd column of a pair is added first, and each sum is rounded.
void pairs_are_added_odd_first() {
  const std::vector<float> ones(4, 1.0f);
  CHECK(EqualRows(ones).times({1.0f, 0x1p24f, 0, 0}) == 0x1p24f);
  CHECK(EqualRows(ones).times({1.0f, 0x1p24f, 0, -0x1p24f}) == 0.0f);
  CHECK(EqualRows(ones).times({-0x1p24f, 0x1p24f, 0, 1.0f}) == 1.0f);
}

// Numbers whose products would be subnormal count as zero on every instruction set.
void tiny_factors_are_zero() {
  const EqualRows w({0x1p-56f, 0x1p-57f, 0x1p-130f, 1.0f});
  CHECK(w.times({0x1p-56f, 1.0f, 1.0f, 0.0f}) == 0x1p-112f);
  CHECK(w.times({0.0f, 0.0f, 0.0f, 0x1p-57f}) == 0.0f);
  std::vector<float> embedded(4);
  embed_row(*w.packed, 3, 1.0f, embedded.data());
  CHECK(embedded[0] == 0x1p-56f && embedded[1] == 0.0f && embedded[2] == 0.0f);
}

// Magnitudes all over the range, cancellations included: the same bits everywhere.
void instruction_sets_agree() {
  std::mt19937 rng(29);
  std::vector<float> row(301), x(301);
  for (int trial = 0; trial < 200; ++trial) {
    for (size_t k = 0; k < row.size(); ++k) {
      const int range = trial % 2 == 0 ? 60 : 8;
      const auto draw = [&] {
        return std::ldexp(std::normal_distribution<float>()(rng), int(rng() % unsigned(range)) - range);
      };
      row[k] = draw();
      x[k] = draw();
    }
    const EqualRows w(row);
    select_isa("generic");
    const float expected = w.times(x);
    for (const char* isa : available_isas()) {
      select_isa(isa);
      CHECK(w.times(x) == expected, "%s", isa);
    }
  }
}

void run() {
  halves_round_to_nearest_even();
  bf16_rounds_to_nearest_even_and_tiny_to_zero();
  for (const char* isa : available_isas()) {
    select_isa(isa);
    pairs_are_added_odd_first();
    tiny_factors_are_zero();
  }
  instruction_sets_agree();
}

}  // namespace
}  // namespace takt::test

int main() { takt::test::run(); }
