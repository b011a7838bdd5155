// Weights converted while they are packed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/linear.h"
#include "kernels/quantize_weights.h"
#include "tests/check.h"
#include "tests/linear_reference.h"

namespace takt::test {
namespace {

constexpr QuantType kTargets[] = {QuantType::kF32, QuantType::kF16, QuantType::kBF16,
                                  QuantType::kQ8_0, QuantType::kQ4_1};

std::vector<float> row_of(const PackedWeight& w, int64_t row) {
  std::vector<float> out(static_cast<size_t>(w.cols()));
  embed_row(w, row, 1.0f, out.data());
  return out;
}

// How far a converted value may lie from x, whose group of 32 spans `width` and has magnitudes up to
// `largest`. Half a step of the grid; the grid's f16 scale and minimum may be off by 2^-11 of
// themselves, 2^-25 at least.
double tolerance(QuantType target, double x, double largest, double width) {
  switch (target) {
    case QuantType::kF16: return std::max(std::abs(x) * 0x1p-11, 0x1p-25);
    case QuantType::kBF16: return std::abs(x) * 0x1p-8 + 0x1p-56;
    case QuantType::kQ8_0: return largest / 127 * (0.5 + 0x1p-9) + 127 * 0x1p-24;
    case QuantType::kQ4_1: return width / 15 * 1.25 + largest * 0x1p-10 + 15 * 0x1p-24;
    default: return 0;
  }
}

void values_stay_near(QuantType from, QuantType target) {
  std::mt19937 rng(31 + unsigned(from));
  const RandomMatrix raw(from, 17, 256, rng);
  RawMatrix view = raw.view();
  view.packed_type = target;
  const auto w = pack_weight({&view, 1}, nullptr, 2);
  CHECK(w->is_quantised() == !is_float_type(target));
  CHECK(w->needs_bf16() == (target == QuantType::kBF16));
  for (int64_t n = 0; n < raw.rows; ++n) {
    const std::vector<float> got = row_of(*w, n);
    for (int64_t group = 0; group < raw.cols; group += 32) {
      double x[32];
      for (int64_t i = 0; i < 32; ++i) x[i] = raw.at(n, group + i);
      const auto [low, high] = std::minmax_element(x, x + 32);
      const double largest = std::max(std::abs(*low), std::abs(*high));
      for (int64_t i = 0; i < 32; ++i) {
        const double want = double(float(x[i]));
        const double is = double(got[size_t(group + i)]);
        CHECK(std::abs(is - want) <= tolerance(target, want, largest, *high - *low),
              "%d to %d at %ld,%ld: %g became %g", int(from), int(target), long(n),
              long(group + i), want, is);
      }
    }
  }
}

// Of a file type that `quantize_weights` can hit exactly, nothing is lost.
void a_grid_of_levels_is_found_again() {
  float x[32];
  for (int i = 0; i < 32; ++i) x[i] = 0.25f * float(i * 7 % 16) - 1.5f;
  QuantBlock block;
  quantize_weights(QuantType::kQ4_1, x, &block);
  for (int i = 0; i < 32; ++i) {
    CHECK(float_from_half(block.scale) * float(block.q[i]) + float_from_half(block.min) == x[i]);
  }
}

double squared_error(const float* x, const QuantBlock& block) {
  double error = 0;
  for (int i = 0; i < 32; ++i) {
    const double got = double(float_from_half(block.scale)) * block.q[i] +
                       double(float_from_half(block.min));
    error += (got - double(x[i])) * (got - double(x[i]));
  }
  return error;
}

// Against the plain grid from the lowest to the highest value.
void the_search_pays() {
  std::mt19937 rng(3);
  double searched = 0, plain = 0;
  for (int trial = 0; trial < 500; ++trial) {
    float x[32];
    for (float& v : x) v = std::normal_distribution<float>()(rng);
    QuantBlock block;
    quantize_weights(QuantType::kQ4_1, x, &block);
    searched += squared_error(x, block);
    const auto [low, high] = std::minmax_element(x, x + 32);
    block.scale = half_from_float((*high - *low) / 15);
    block.min = half_from_float(*low);
    for (int i = 0; i < 32; ++i) {
      block.q[i] = uint8_t(std::nearbyint((x[i] - *low) / (*high - *low) * 15));
    }
    plain += squared_error(x, block);
  }
  CHECK(searched < 0.9 * plain, "%g, not far below %g", searched, plain);
}

void odd_groups_are_kept(QuantType type) {
  const float values[][2] = {{0, 0}, {1, 1}, {-3, -3}, {1e-9f, -1e-9f}, {0, 0x1p-120f}, {3e4f, -3e4f}};
  for (const auto& [even, odd] : values) {
    float x[32];
    for (int i = 0; i < 32; ++i) x[i] = i % 2 == 0 ? even : odd;
    QuantBlock block;
    quantize_weights(type, x, &block);
    const bool has_min = type == QuantType::kQ4_1;
    for (int i = 0; i < 32; ++i) {
      const int q = int(block.q[i]) - (has_min ? 0 : 128);
      const float got = float_from_half(block.scale) * float(q) +
                        (has_min ? float_from_half(block.min) : 0.0f);
      CHECK(std::abs(got - x[i]) <= std::abs(x[i]) * 0x1p-7f + 0x1p-24f, "%g became %g",
            double(x[i]), double(got));
    }
  }
}

void instruction_sets_agree() {
  std::mt19937 rng(37);
  for (int trial = 0; trial < fewer_if_sanitized(2000); ++trial) {
    float x[32];
    const int exponent = int(rng() % 40) - 30;
    for (float& v : x) v = std::ldexp(std::normal_distribution<float>()(rng), exponent);
    for (const QuantType type : {QuantType::kQ8_0, QuantType::kQ4_1}) {
      QuantBlock expected{}, got{};
      select_isa("generic");
      quantize_weights(type, x, &expected);
      for (const char* isa : available_isas()) {
        select_isa(isa);
        quantize_weights(type, x, &got);
        CHECK(std::memcmp(&got, &expected, sizeof(got)) == 0, "%s type %d", isa, int(type));
      }
    }
  }
}

bool is_refused(float value, QuantType target) {
  std::vector<float> raw(32, value);
  RawMatrix view = {reinterpret_cast<const std::byte*>(raw.data()), QuantType::kF32, 1, 32};
  view.packed_type = target;
  try {
    pack_weight({&view, 1}, nullptr, 1);
  } catch (const std::invalid_argument& error) {
    return std::strlen(error.what()) > 0;
  }
  return false;
}

void what_a_type_cannot_hold_is_refused() {
  const float nan = std::nanf("");
  CHECK(is_refused(70000.0f, QuantType::kF16) && !is_refused(65504.0f, QuantType::kF16));
  CHECK(is_refused(70000.0f, QuantType::kQ4_1) && !is_refused(70000.0f, QuantType::kQ8_0));
  CHECK(is_refused(1e7f, QuantType::kQ8_0) && is_refused(nan, QuantType::kQ8_0));
  CHECK(is_refused(nan, QuantType::kQ4_1) && !is_refused(1e38f, QuantType::kBF16));
  CHECK(is_refused(1.0f, QuantType::kQ6_K));
}

void run() {
  for (const char* isa : available_isas()) {
    select_isa(isa);
    a_grid_of_levels_is_found_again();
    the_search_pays();
    odd_groups_are_kept(QuantType::kQ8_0);
    odd_groups_are_kept(QuantType::kQ4_1);
    for (const QuantType from : kAllTypes) {
      for (const QuantType target : kTargets) {
        if (from != target) values_stay_near(from, target);
      }
    }
  }
  what_a_type_cannot_hold_is_refused();
  instruction_sets_agree();
}

}  // namespace
}  // namespace takt::test

int main() { takt::test::run(); }
