// Products with packed weights: against the slow reference, on every instruction set of this CPU,
// and equal bit for bit whatever the blocking.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/linear_batches.h"
#include "tests/linear_reference.h"

namespace takt::test {
namespace {

constexpr int kAllRows = 1 << 30;

std::vector<int64_t> column_counts(QuantType type) {
  if (is_float_type(type)) return {1, 3, 7, 96, 257};
  if (file_format(type).cols == 256) return {256, 768};
  return {32, 96, 576};
}

struct Expected {
  double value;
  double tolerance;
};

// Element n of row i of the product, and how far from it f32 arithmetic may end. A running total
// rounds at most twice for each group of 32 (float types: each of 2 totals once for each second
// column, of bf16 pairs twice for each second pair), a group's own factors at most 4 times, the last sums and the bias 3 times; each rounding
// errs by at most 2^-24 of the magnitudes that were added. A minimum is multiplied by a sum of activations,
// whose magnitude is at most the sum of theirs.
Expected expected_product(const RandomMatrix& w, const RandomRows& x, int i, int64_t n,
                          double bias) {
  double value = bias;
  double magnitude = std::abs(bias);
  for (int64_t k = 0; k < w.cols; ++k) {
    const Terms t = w.terms(n, k);
    const double activation = x.at(w.type, i, k);
    value += (t.scaled + t.min) * activation;
    magnitude += (std::abs(t.scaled) + std::abs(t.min)) * std::abs(activation);
  }
  const int64_t num_sums = is_float_type(w.type) ? w.cols / 2 : w.cols / 32 * 2;
  return {value, double(num_sums + 7) * std::ldexp(magnitude, -24)};
}

void check_products(const RandomMatrix& raw, const RandomRows& x, int m,
                    const std::vector<float>& bias) {
  const RawMatrix view = raw.view();
  const auto w = pack_weight({&view, 1}, bias.data(), 2);
  CHECK(w->rows() == raw.rows && w->cols() == raw.cols);
  CHECK(w->is_quantised() == !is_float_type(raw.type));
  CHECK(w->needs_bf16() == (raw.type == QuantType::kBF16));
  CHECK(w->needs_f32() == (is_float_type(raw.type) && !w->needs_bf16()));
  const std::vector<float> out = multiply(*w, x, m);
  for (int i = 0; i < m; ++i) {
    for (int64_t n = 0; n < raw.rows; ++n) {
      const Expected expected = expected_product(raw, x, i, n, double(bias[size_t(n)]));
      const double got = double(out[size_t(i * raw.rows + n)]);
      CHECK(std::abs(got - expected.value) <= expected.tolerance,
            "%s type %d cols %ld row %d,%ld: %.9g, not %.9g within %.3g", selected_isa(),
            int(raw.type), long(raw.cols), i, long(n), got, expected.value, expected.tolerance);
    }
  }
}

std::vector<float> random_bias(int64_t rows, std::mt19937& rng) {
  std::vector<float> bias(static_cast<size_t>(rows));
  for (float& b : bias) b = std::normal_distribution<float>()(rng);
  return bias;
}

void products_match_reference(QuantType type) {
  std::mt19937 rng(7 + unsigned(type));
  for (const int64_t cols : column_counts(type)) {
    const RandomMatrix raw(type, 37, cols, rng);
    const RandomRows x(5, cols, rng);
    check_products(raw, x, 5, random_bias(37, rng));
  }
}

void small_batches_equal_single_rows(QuantType type) {
  std::mt19937 rng(99 + unsigned(type));
  const int64_t cols = is_float_type(type) ? 67 : file_format(type).cols == 256 ? 512 : 160;
  batches_equal_single_rows(RandomMatrix(type, 40, cols, rng), kAllRows,
                            small_batches(), rng);
}

// Around the number of rows that one pass takes.
void more_rows_than_a_pass_equal_single_rows() {
  std::mt19937 rng(21);
  batches_equal_single_rows(RandomMatrix(QuantType::kQ4_1, 40, 96, rng), kAllRows,
                            {255, 256, 257, 300}, rng);
}

// What a product reads lies in one piece, and that of the rows after it behind it.
void rows_lie_one_after_the_other() {
  std::mt19937 rng(4);
  const RandomMatrix a(QuantType::kQ4_1, 48, 64, rng);
  const RandomMatrix b(QuantType::kQ8_0, 16, 64, rng);
  const RawMatrix parts[] = {a.view(), b.view()};
  const auto w = pack_weight(parts, nullptr, 1);
  const auto whole = w->memory_of_rows(0, 64);
  const std::byte* at = whole.data();
  for (int64_t row = 0; row < 64; row += 16) {
    const auto memory = w->memory_of_rows(row, row + 16);
    CHECK(memory.data() == at && !memory.empty());
    at += memory.size();
  }
  CHECK(at == whole.data() + whole.size() && whole.size() <= w->bytes());
}

// Any range of rows gives the same elements, and nothing outside is written.
void ranges_equal_whole() {
  std::mt19937 rng(3);
  const RandomMatrix a(QuantType::kQ4_1, 40, 256, rng);
  const RandomMatrix b(QuantType::kQ6_K, 24, 256, rng);
  const RandomMatrix c(QuantType::kF16, 17, 256, rng);
  const RandomMatrix d(QuantType::kQ8_0, 5, 256, rng);
  const RawMatrix parts[] = {a.view(), b.view(), c.view(), d.view()};
  const int64_t rows = 86;
  const std::vector<float> bias = random_bias(rows, rng);
  const auto w = pack_weight(parts, bias.data(), 3);
  CHECK(w->rows() == rows && w->needs_f32() && w->is_quantised());
  const int m = 7;
  const RandomRows x(m, 256, rng);
  const std::vector<float> whole = multiply(*w, x, m);
  for (int64_t n0 = 0; n0 < rows; n0 += 16) {
    for (int64_t n1 = n0 + 1; n1 <= rows; n1 += 9) {
      const int64_t stride = n1 - n0 + 3;
      std::vector<float> out(size_t(m * stride), 12345.0f);
      linear(*w, n0, n1, x.view(m), out.data(), stride);
      for (int i = 0; i < m; ++i) {
        for (int64_t n = n0; n < n0 + stride; ++n) {
          const float expected = n < n1 ? whole[size_t(i * rows + n)] : 12345.0f;
          CHECK(out[size_t(i * stride + n - n0)] == expected, "[%ld, %ld) row %d,%ld", long(n0),
                long(n1), i, long(n));
        }
      }
    }
  }
  // Each part alone gives its rows of the stack.
  int64_t first = 0;
  for (const RawMatrix& part : parts) {
    const auto alone = pack_weight({&part, 1}, bias.data() + first, 1);
    const std::vector<float> out = multiply(*alone, x, m);
    for (int i = 0; i < m; ++i) {
      for (int64_t n = 0; n < part.rows; ++n) {
        CHECK(out[size_t(i * part.rows + n)] == whole[size_t(i * rows + first + n)]);
      }
    }
    first += part.rows;
  }
}

// The largest sums that int8 groups can reach: no instruction saturates.
void extremes_do_not_saturate(QuantType type) {
  std::mt19937 rng(5);
  const int64_t cols = 256;
  RandomMatrix raw(type, 16, cols, rng);
  const FileFormat format = file_format(type);
  for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
    for (size_t b = 0; b < raw.raw.size(); b += size_t(format.bytes)) {
      uint8_t* p = raw.raw.data() + b;
      for (int i = 0; i < format.bytes; ++i) {
        const bool scale = type == QuantType::kQ6_K ? i >= 208 : i < 4;
        if (!scale) p[i] = uint8_t(fill);
      }
    }
    RandomRows x(2, cols, rng);
    std::fill(x.f32[0].begin(), x.f32[0].end(), 1.0f);
    std::fill(x.f32[1].begin(), x.f32[1].end(), -1.0f);
    x.quantize();
    check_products(raw, x, 2, std::vector<float>(16, 0.0f));
  }
}

// Each value is one rounding of the exact product and sum of its type's formula.
void embedding_is_exact(QuantType type) {
  std::mt19937 rng(11 + unsigned(type));
  const int64_t rows = 21;
  const int64_t cols = is_float_type(type) ? 67 : 512;
  const RandomMatrix raw(type, rows, cols, rng);
  const RandomMatrix before(QuantType::kQ4_0, 19, cols / 32 * 32, rng);
  const RawMatrix stack[] = {before.view(), raw.view()};
  const bool stacked = before.cols == cols;
  const auto w = stacked ? pack_weight(stack, nullptr, 1) : pack_weight({&stack[1], 1}, nullptr, 1);
  std::vector<float> out(static_cast<size_t>(cols));
  for (int64_t n = 0; n < rows; ++n) {
    embed_row(*w, n + (stacked ? before.rows : 0), 1.0f, out.data());
    for (int64_t k = 0; k < cols; ++k) {
      CHECK(out[size_t(k)] == float(raw.at(n, k)), "type %d row %ld,%ld", int(type), long(n),
            long(k));
    }
    embed_row(*w, n + (stacked ? before.rows : 0), 3.7f, out.data());
    for (int64_t k = 0; k < cols; ++k) CHECK(out[size_t(k)] == float(raw.at(n, k)) * 3.7f);
  }
}

template <typename Action>
bool is_refused(const Action& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return std::strlen(error.what()) > 0;
  }
  return false;
}

void wrong_shapes_are_refused() {
  std::mt19937 rng(1);
  const RandomMatrix a(QuantType::kQ4_0, 16, 64, rng);
  const RandomMatrix b(QuantType::kQ4_0, 16, 32, rng);
  const RawMatrix unequal[] = {a.view(), b.view()};
  RawMatrix ragged = a.view();
  ragged.cols = 48;
  RawMatrix not_super = a.view();
  not_super.type = QuantType::kQ4_K;
  RawMatrix no_rows = a.view();
  no_rows.rows = 0;
  RawMatrix no_data = a.view();
  no_data.raw = nullptr;
  RawMatrix unknown = a.view();
  unknown.type = QuantType(77);
  CHECK(is_refused([&] { pack_weight({}, nullptr, 1); }));
  CHECK(is_refused([&] { pack_weight(unequal, nullptr, 1); }));
  for (const RawMatrix& wrong : {ragged, not_super, no_rows, no_data, unknown}) {
    CHECK(is_refused([&] { pack_weight({&wrong, 1}, nullptr, 1); }));
  }
}

void instruction_sets_are_chosen_by_name() {
  const auto isas = available_isas();
  CHECK(!isas.empty() && std::string(isas.back()) == "generic");
  for (const char* isa : isas) {
    select_isa(isa);
    CHECK(std::string(selected_isa()) == isa);
  }
  CHECK(is_refused([] { select_isa("mmx"); }));
  select_isa(nullptr);
  CHECK(std::string(selected_isa()) == isas.front());
}

void run() {
  instruction_sets_are_chosen_by_name();
  wrong_shapes_are_refused();
  more_rows_than_a_pass_equal_single_rows();
  for (const QuantType type : kAllTypes) {
    embedding_is_exact(type);
    small_batches_equal_single_rows(type);
  }
  for (const char* isa : available_isas()) {
    select_isa(isa);
    rows_lie_one_after_the_other();
    ranges_equal_whole();
    for (const QuantType type : kAllTypes) {
      products_match_reference(type);
      if (!is_float_type(type)) extremes_do_not_saturate(type);
    }
  }
}

}  // namespace
}  // namespace takt::test

int main() { takt::test::run(); }
