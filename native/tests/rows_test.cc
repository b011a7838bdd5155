// Row kernels against double, on every instruction set; and equal bits between them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt {
namespace {

using test::Random;

constexpr int64_t kSizes[] = {1, 7, 8, 16, 24, 40, 63, 64, 65, 80, 130, 576, 1536};

std::vector<float> random_row(Random* random, int64_t n, float magnitude) {
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = random->between(-magnitude, magnitude);
  return row;
}

// Runs `kernel(out)` on every instruction set and checks that all give the first one's bits.
template <class Kernel>
std::vector<float> on_every_isa(size_t n, Kernel kernel) {
  std::vector<float> first;
  for (const char* isa : available_isas()) {
    select_isa(isa);
    std::vector<float> out(n + 1, 12345.0f);
    kernel(out.data());
    CHECK(out[n] == 12345.0f, "%s wrote past the end of %zu", isa, n);
    out.resize(n);
    if (first.empty()) first = out;
    CHECK(std::memcmp(first.data(), out.data(), n * 4) == 0, "%s differs, n = %zu", isa, n);
  }
  select_isa(nullptr);
  return first;
}

void expect_near(double got, double want, double tolerance, const char* what) {
  CHECK(std::abs(got - want) <= tolerance, "%s: got %.9g, want %.9g, tolerance %.3g", what,
             got, want, tolerance);
}

void test_rms_norm() {
  Random random(1);
  for (int64_t n : kSizes) {
    const auto x = random_row(&random, n, 3.0f);
    const auto weight = random_row(&random, n, 2.0f);
    const float eps = 1e-5f;
    double squares = 0.0;
    for (float v : x) squares += double(v) * v;
    const double scale = 1.0 / std::sqrt(squares / double(n) + double(eps));
    const auto out = on_every_isa(size_t(n), [&](float* to) {
      rms_norm_row(x.data(), weight.data(), eps, n, to);
    });
    auto in_place = x;
    rms_norm_row(in_place.data(), weight.data(), eps, n, in_place.data());
    CHECK(in_place == out);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = double(x[i]) * scale * double(weight[i]);
      expect_near(out[i], want, std::abs(want) * (double(n) / 64 + 16) * 0x1p-24, "rms_norm");
    }
  }
}

void test_add_and_norm_are_those_of_two_steps() {
  Random random(5);
  for (int64_t n : kSizes) {
    const auto a = random_row(&random, n, 3.0f);
    const auto b = random_row(&random, n, 3.0f);
    const auto weight = random_row(&random, n, 2.0f);
    std::vector<float> sum(static_cast<size_t>(n)), want(static_cast<size_t>(n));
    add_row(a.data(), b.data(), n, sum.data());
    rms_norm_row(sum.data(), weight.data(), 1e-5f, n, want.data());
    const auto both = on_every_isa(size_t(2 * n), [&](float* to) {
      add_rms_norm_row(a.data(), b.data(), weight.data(), 1e-5f, n, to, to + n);
    });
    for (size_t i = 0; i < size_t(n); ++i) {
      CHECK(both[i] == sum[i] && both[size_t(n) + i] == want[i]);
    }
  }
}

void test_add() {
  Random random(2);
  for (int64_t n : kSizes) {
    const auto a = random_row(&random, n, 3.0f);
    const auto b = random_row(&random, n, 3.0f);
    const auto out =
        on_every_isa(size_t(n), [&](float* to) { add_row(a.data(), b.data(), n, to); });
    for (size_t i = 0; i < a.size(); ++i) CHECK(out[i] == a[i] + b[i]);
  }
}

void test_rope() {
  Random random(3);
  const int64_t num_heads = 3;
  for (int64_t head_dim : {16, 24, 40, 64, 80, 128, 256}) {
    const int64_t half = head_dim / 2;
    const auto heads = random_row(&random, num_heads * head_dim, 3.0f);
    const auto angle = random_row(&random, half, 3.0f);
    std::vector<float> cos(angle.size()), sin(angle.size());
    for (size_t i = 0; i < angle.size(); ++i) {
      cos[i] = std::cos(angle[i]);
      sin[i] = std::sin(angle[i]);
    }
    const auto out = on_every_isa(heads.size(), [&](float* to) {
      rope_heads(heads.data(), num_heads, head_dim, cos.data(), sin.data(), to);
    });
    auto in_place = heads;
    rope_heads(in_place.data(), num_heads, head_dim, cos.data(), sin.data(), in_place.data());
    CHECK(in_place == out);
    for (size_t at = 0; at < heads.size(); at += size_t(head_dim)) {
      for (size_t i = 0; i < size_t(half); ++i) {
        const double x = heads[at + i], y = heads[at + i + size_t(half)], c = cos[i], s = sin[i];
        const double tolerance = (std::abs(x) + std::abs(y)) * 0x1p-23;  // two roundings a term
        expect_near(out[at + i], x * c - y * s, tolerance, "rope, first half");
        expect_near(out[at + i + size_t(half)], y * c + x * s, tolerance, "rope, second half");
      }
    }
  }
}

// Every value of gate from -110 to 110 in small steps, and the specials.
std::vector<float> gate_inputs() {
  std::vector<float> x = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-40f, -1e4f, 1e4f, -3e38f, 3e38f};
  for (float v = -110.0f; v < 110.0f; v += 0.00317f) x.push_back(v);
  return x;
}

void test_silu() {
  const auto x = gate_inputs();
  const std::vector<float> up(x.size(), 1.0f);
  const auto out = on_every_isa(x.size(), [&](float* to) {
    gate_row(Gate::kSilu, x.data(), up.data(), int64_t(x.size()), to);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double want = v / (1.0 + std::exp(-v));
    const double relative = (3.0 + std::abs(v) / 2) * 0x1p-23;
    expect_near(out[i], want, std::abs(want) * relative + 0x1p-116, "silu");
  }
}

void test_gelu() {
  const auto x = gate_inputs();
  const std::vector<float> up(x.size(), 1.0f);
  const auto out = on_every_isa(x.size(), [&](float* to) {
    gate_row(Gate::kGeluTanh, x.data(), up.data(), int64_t(x.size()), to);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double u = std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
    const double want = v / (1.0 + std::exp(-2.0 * u));
    const double relative = (4.0 + 8.0 * std::abs(u)) * 0x1p-23;
    expect_near(out[i], want, want == 0.0 ? 0x1p-116 : std::abs(want) * relative + 0x1p-116,
                "gelu_tanh");
  }
}

void test_gate_multiplies_and_keeps_nan() {
  Random random(4);
  const auto gate = random_row(&random, 40, 5.0f);
  const auto up = random_row(&random, 40, 5.0f);
  const std::vector<float> one(40, 1.0f);
  std::vector<float> act(40), out(40);
  gate_row(Gate::kSilu, gate.data(), one.data(), 40, act.data());
  gate_row(Gate::kSilu, gate.data(), up.data(), 40, out.data());
  for (size_t i = 0; i < 40; ++i) CHECK(out[i] == act[i] * up[i]);
  for (const char* isa : available_isas()) {
    select_isa(isa);
    const std::vector<float> nan(40, std::numeric_limits<float>::quiet_NaN());
    gate_row(Gate::kSilu, nan.data(), one.data(), 40, out.data());
    for (float v : out) CHECK(std::isnan(v), "%s", isa);
  }
  select_isa(nullptr);
}

void test_softcap() {
  const float cap = 30.0f;
  const auto x = gate_inputs();
  const auto out = on_every_isa(x.size(), [&](float* to) {
    softcap_row(x.data(), cap, int64_t(x.size()), to);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    expect_near(out[i], double(cap) * std::tanh(double(x[i]) / double(cap)), cap * 0x1p-21,
                "softcap");
  }
}

}  // namespace
}  // namespace takt

int main() {
  takt::test_rms_norm();
  takt::test_add_and_norm_are_those_of_two_steps();
  takt::test_add();
  takt::test_rope();
  takt::test_silu();
  takt::test_gelu();
  takt::test_gate_multiplies_and_keeps_nan();
  takt::test_softcap();
}
