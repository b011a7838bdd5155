// Quantised rows of activations.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/linear_reference.h"

namespace takt::test {
namespace {

void check_group(const float* x, const Q8Row& row, int64_t g) {
  const float scale = row.scale[g];
  float amax = 0;
  for (int i = 0; i < 32; ++i) amax = std::max(amax, std::abs(x[i]));
  CHECK(scale == amax / 127.0f);
  int sum[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    const int q = row.q[32 * g + i];
    CHECK(q == (scale == 0 ? 0 : int(std::nearbyint(x[i] * (127.0f / amax)))));
    CHECK(q >= -127 && q <= 127);
    sum[i / 16] += q;
  }
  CHECK(row.sum[2 * g] == sum[0] && row.sum[2 * g + 1] == sum[1]);
  CHECK(row.scaled_sum[g] == scale * float(sum[0] + sum[1]));
}

void rows_follow_the_formula() {
  std::mt19937 rng(17);
  for (const int64_t k : {32, 64, 96, 576, 1536}) {
    const RandomRows x(9, k, rng);
    for (size_t i = 0; i < 9; ++i) {
      for (int64_t g = 0; g < k / 32; ++g) check_group(x.f32[i].data() + 32 * g, x.q8[i], g);
    }
  }
}

// Half-way cases: 127 fixes the scale to 1.
void ties_go_to_even() {
  std::mt19937 rng(1);
  RandomRows x(1, 32, rng);
  std::fill(x.f32[0].begin(), x.f32[0].end(), 0.0f);
  const float in[] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f};
  const int out[] = {127, 0, 2, 2, 0, -2, -2, 126, -126};
  std::copy(std::begin(in), std::end(in), x.f32[0].begin());
  x.quantize();
  for (size_t i = 0; i < std::size(out); ++i) CHECK(x.q8[0].q[i] == out[i]);
}

// Numbers too small for a scale count as zeros; infinities and NaN mark their group.
void extremes_are_defined() {
  std::mt19937 rng(1);
  RandomRows x(1, 160, rng);
  auto& row = x.f32[0];
  std::fill(row.begin(), row.end(), 0.0f);
  row[33] = std::numeric_limits<float>::denorm_min();
  row[64] = 3.0f;
  row[65] = -std::numeric_limits<float>::infinity();
  row[96] = std::numeric_limits<float>::quiet_NaN();
  row[97] = 1.0f;
  row[128] = -std::numeric_limits<float>::max();
  x.quantize();
  const Q8Row& q8 = x.q8[0];
  CHECK(q8.scale[0] == 0.0f && q8.scale[1] == 0.0f && q8.scaled_sum[1] == 0.0f);
  CHECK(std::isinf(q8.scale[2]) && std::isnan(q8.scaled_sum[2]));
  CHECK(std::isnan(q8.scale[3]) && std::isnan(q8.scaled_sum[3]));
  for (int i = 0; i < 128; ++i) CHECK(q8.q[i] == 0);
  CHECK(q8.q[128] == -127);
}

// All parts of a row, on every instruction set, equal those of the generic build.
void instruction_sets_agree() {
  constexpr int64_t kCols = 1536;
  std::mt19937 rng(23);
  std::mt19937 same_rng(23);
  select_isa("generic");
  const RandomRows expected(3, kCols, rng);
  RandomRows x(3, kCols, same_rng);
  for (const char* isa : available_isas()) {
    select_isa(isa);
    x.quantize();
    for (size_t i = 0; i < 3; ++i) {
      const auto* row = reinterpret_cast<const std::byte*>(x.q8[i].q);
      const auto* reference = reinterpret_cast<const std::byte*>(expected.q8[i].q);
      // kCols fills every part up to its border: the row has no padding.
      CHECK(std::memcmp(row, reference, q8_row_bytes(kCols)) == 0, "%s", isa);
    }
  }
}

void run() {
  for (const char* isa : available_isas()) {
    select_isa(isa);
    rows_follow_the_formula();
    ties_go_to_even();
    extremes_are_defined();
  }
  instruction_sets_agree();
}

}  // namespace
}  // namespace takt::test

int main() { takt::test::run(); }
