// Products of quantised weights with bf16 rows: the weights that they use are the stored ones, rounded
// to f32 and then to bf16, sums are right, and equal bit for bit on all sets whatever the batch.
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/float16.h"
#include "kernels/round_bf16.h"
#include "tests/linear_batches.h"

namespace takt::test {
namespace {

constexpr int64_t kRows = 21;

std::unique_ptr<PackedWeight> pack(const RandomMatrix& raw) {
  const RawMatrix view = raw.view();
  return pack_weight({&view, 1}, nullptr, 1);
}

// Column by column, what a row of x that is 1 there and 0 elsewhere gives: [cols, rows].
std::vector<float> weights_used(const PackedWeight& w) {
  std::vector<float> out(size_t(w.cols() * w.rows()));
  for (int64_t k = 0; k < w.cols(); ++k) {
    std::vector<uint16_t> x(size_t(w.cols()));
    x[size_t(k)] = 0x3f80;
    const uint16_t* row = x.data();
    linear(w, 0, w.rows(), {nullptr, nullptr, &row, 1, 0}, out.data() + k * w.rows(), w.rows());
  }
  return out;
}

void weights_are_nearest(const RandomMatrix& raw, const std::vector<float>& used) {
  for (int64_t k = 0; k < raw.cols; ++k) {
    for (int64_t n = 0; n < raw.rows; ++n) {
      const float got = used[size_t(k * raw.rows + n)];
      const double exact = raw.at(n, k);
      CHECK(got == float_from_bf16(round_to_bf16(float(exact))),
            "%s type %d row %ld,%ld: %.9g, exact %.9g", selected_isa(), int(raw.type), long(n),
            long(k), double(got), exact);
    }
  }
}

// Of a sum each of its roundings may lose 2^-24 of the magnitudes that were added: 16 in a chain, one
// where chains meet, one a group.
void sums_are_right(const RandomMatrix& raw, const PackedWeight& w, const std::vector<float>& used,
                    std::mt19937& rng) {
  const int m = 5;
  const RandomRows x(m, raw.cols, rng);
  const std::vector<float> out = multiply(w, x, m, 0);
  for (int i = 0; i < m; ++i) {
    for (int64_t n = 0; n < raw.rows; ++n) {
      double value = 0, magnitude = 0;
      for (int64_t k = 0; k < raw.cols; ++k) {
        const double product = x.bf16_at(i, k) * double(used[size_t(k * raw.rows + n)]);
        value += product;
        magnitude += std::abs(product);
      }
      const double tolerance = double(raw.cols / 32 + 18) * std::ldexp(magnitude, -24);
      const double got = double(out[size_t(i * raw.rows + n)]);
      CHECK(std::abs(got - value) <= tolerance, "%s type %d row %d,%ld: %.9g, not %.9g",
            selected_isa(), int(raw.type), i, long(n), got, value);
    }
  }
}

void products_match_reference(QuantType type) {
  std::mt19937 rng(31 + unsigned(type));
  const RandomMatrix raw(type, kRows, 768, rng);
  const auto w = pack(raw);
  const std::vector<float> used = weights_used(*w);
  weights_are_nearest(raw, used);
  sums_are_right(raw, *w, used, rng);
}

void small_batches_equal_single_rows(QuantType type) {
  std::mt19937 rng(41 + unsigned(type));
  const int64_t cols = file_format(type).cols == 256 ? 512 : 160;
  batches_equal_single_rows(RandomMatrix(type, 40, cols, rng), 0, small_batches(), rng);
}

// More columns than are widened at once, and more rows than pass at once.
void large_products_equal_single_rows() {
  std::mt19937 rng(22);
  batches_equal_single_rows(RandomMatrix(QuantType::kQ4_1, 48, 2080, rng), 0, {1, 17, 33, 50},
                            rng);
  batches_equal_single_rows(RandomMatrix(QuantType::kQ4_1, 40, 96, rng), 0,
                            {255, 256, 257, 300}, rng);
}

// Rows of both forms in one batch, around the sizes at which kernels change.
void batches_may_mix_forms() {
  std::mt19937 rng(23);
  for (const int num_q8 : {1, 5, 13, 40}) {
    batches_equal_single_rows(RandomMatrix(QuantType::kQ4_1, 40, 160, rng), num_q8,
                              {1, 2, 6, 14, 30, 41, 70}, rng);
  }
}

// Rows that lie anyhow.
void rows_may_lie_anyhow() {
  std::mt19937 rng(24);
  const RandomMatrix raw(QuantType::kQ8_0, 40, 256, rng);
  const auto w = pack(raw);
  const RandomRows x(3, 256, rng);
  const std::vector<float> whole = multiply(*w, x, 3, 0);
  const uint16_t* bf16[] = {x.bf16_rows[2], x.bf16_rows[0], x.bf16_rows[1]};
  std::vector<float> out(3 * 40);
  linear(*w, 0, 40, {nullptr, nullptr, bf16, 3, 0}, out.data(), 40);
  for (int i = 0; i < 3; ++i) {
    const float* expected = whole.data() + (i + 2) % 3 * 40;
    CHECK(std::memcmp(out.data() + i * 40, expected, 40 * sizeof(float)) == 0);
  }
}

void run() {
  for (const QuantType type : kAllTypes) {
    if (!is_float_type(type)) small_batches_equal_single_rows(type);
  }
  large_products_equal_single_rows();
  batches_may_mix_forms();
  for (const char* isa : available_isas()) {
    select_isa(isa);
    rows_may_lie_anyhow();
    for (const QuantType type : kAllTypes) {
      if (!is_float_type(type)) products_match_reference(type);
    }
  }
}

}  // namespace
}  // namespace takt::test

int main() { takt::test::run(); }
