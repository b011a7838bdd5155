// Draws from one row against a slow reference that sorts, on every instruction set.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/philox.h"
#include "tests/sampling_reference.h"

namespace takt::test {
namespace {

// Probabilities of all tokens after temperature and filters, in double.
std::vector<double> filtered(const std::vector<float>& logits, const SampleParams& p) {
  const auto order = sorted_tokens(logits);
  const double best = logits[size_t(order[0])];
  size_t kept = order.size();
  if (p.top_k > 0) kept = std::min(kept, size_t(p.top_k));
  std::vector<double> weight;
  for (size_t i = 0; i < kept; ++i) {
    weight.push_back(std::exp((double(logits[size_t(order[i])]) - best) / double(p.temperature)));
  }
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double sum = 0.0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weight[i];
    if (p.top_p < 1.0f && sum >= double(p.top_p) * total) kept = i + 1;
  }
  while (weight[kept - 1] < double(p.min_p)) --kept;
  const double mass = std::accumulate(weight.begin(), weight.begin() + int64_t(kept), 0.0);
  std::vector<double> out(logits.size(), 0.0);
  for (size_t i = 0; i < kept; ++i) out[size_t(order[i])] = weight[i] / mass;
  return out;
}

// The token at `u` of the running sum in order; checks that `token` is it, or that u lies within
// the error bound (2^-17 of the total) of the border between them.
void check_draw(const std::vector<float>& logits, const SampleParams& p, int32_t token) {
  const auto probability = filtered(logits, p);
  const uint32_t r = philox4x32_10({uint32_t(p.seed), uint32_t(p.seed >> 32)},
                                   {p.position, p.choice, 0, 0})[0];
  const double u = (r + 0.5) * 0x1p-32;
  double before = 0.0;
  for (int32_t t : sorted_tokens(logits)) {
    const double after = before + probability[size_t(t)];
    if (t == token) {
      CHECK(u >= before - 0x1p-17 && u <= after + 0x1p-17, "u %.9f not in [%.9f, %.9f), token %d",
            u, before, after, token);
      return;
    }
    before = after;
  }
  CHECK(false, "token %d is not in the vocabulary", token);
}

// Vectors published with the generator (Random123's kat_vectors).
void test_philox() {
  using Block = std::array<uint32_t, 4>;
  CHECK((philox4x32_10({0, 0}, {0, 0, 0, 0}) ==
         Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  CHECK((philox4x32_10({ones, ones}, {ones, ones, ones, ones}) ==
         Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((philox4x32_10({0xa4093822, 0x299f31d0},
                       {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
         Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void test_draws_agree_with_sorting() {
  Random random(21);
  for (int64_t vocab : {1, 2, 15, 16, 17, 100, 1000, 3001}) {
    for (float magnitude : {0.01f, 1.0f, 5.0f, 40.0f}) {
      const auto logits = random_logits(&random, vocab, magnitude);
      for (int trial = 0; trial < fewer_if_sanitized(40); ++trial) {
        SampleParams p = neutral();
        p.seed = random.bits();
        p.choice = uint32_t(trial);
        p.position = uint32_t(random.bits());
        p.temperature = random.between(0.1f, 3.0f);
        if (trial % 2 != 0) p.top_k = int32_t(random.below(2 * vocab)) + 1;
        if (trial % 3 != 0) p.top_p = random.between(0.05f, 1.0f);
        if (trial % 5 == 0) p.min_p = random.between(0.0f, 0.5f);
        check_draw(logits, p, on_every_isa(logits, p).token);
      }
    }
  }
}

// Tokens that can be drawn are exactly those the filters leave. Every logit is well apart from the
// next, so that rounding moves no border; 4,000 draws miss a token of probability 1/100 with
// probability 0.99^4000 = 3.5e-18.
void test_filters_keep_exactly_their_prefix() {
  std::vector<float> logits(50);
  for (size_t i = 0; i < 50; ++i) logits[(i * 7) % 50] = -0.05f * float(i);
  const auto check = [&](const SampleParams& base) {
    const auto want = filtered(logits, base);
    std::vector<bool> drawn(logits.size());
    for (uint32_t position = 0; position < 4000; ++position) {
      SampleParams p = base;
      p.position = position;
      drawn[size_t(run(logits, p).token)] = true;
    }
    for (size_t t = 0; t < logits.size(); ++t) {
      CHECK(drawn[t] || want[t] < 0.01, "token %zu of probability %.4f never came", t, want[t]);
      CHECK(!drawn[t] || want[t] > 0.0, "token %zu should have been filtered", t);
    }
  };
  SampleParams p = neutral();
  p.top_k = 5;
  check(p);
  p = neutral();
  p.top_p = 0.31f;
  check(p);
  p = neutral();
  p.min_p = 0.52f;
  check(p);
  p = neutral();
  p.top_k = 20;
  p.top_p = 0.5f;
  p.min_p = 0.8f;
  check(p);
}

// Equal logits: top-k and top-p keep the lowest ids; negative zero equals zero.
void test_filters_break_ties_by_id() {
  const auto check = [](const std::vector<float>& logits, int32_t top_k, float top_p,
                        size_t kept) {
    std::vector<bool> drawn(logits.size());
    for (uint32_t position = 0; position < 2000; ++position) {
      SampleParams p = neutral();
      p.position = position;
      p.top_k = top_k;
      p.top_p = top_p;
      drawn[size_t(run(logits, p).token)] = true;
    }
    for (size_t t = 0; t < logits.size(); ++t) CHECK(drawn[t] == (t < kept), "token %zu", t);
  };
  const std::vector<float> equal(300, 1.5f);
  check(equal, 19, 1.0f, 19);
  check(equal, 0, 0.0625f, 19);  // 18.75 tokens
  std::vector<float> zeros(40, 0.0f);
  for (size_t t = 0; t < zeros.size(); t += 2) zeros[t] = -0.0f;
  check(zeros, 5, 1.0f, 5);
  check(zeros, 0, 0.25f, 10);  // a quarter exactly
  check(zeros, 20, 0.25f, 5);  // of what top-k left
}

// The upper tail of chi-square with f degrees of freedom: P(X > f + 2 sqrt(f x) + 2 x) <= e^-x
// (Laurent and Massart, 2000). x = 21 makes a false failure less likely than 1e-9; the draws are
// the same on each run anyway.
void test_distribution() {
  Random random(31);
  const auto logits = random_logits(&random, 40, 1.0f);
  SampleParams p = neutral();
  p.temperature = 0.8f;
  p.top_k = 30;
  p.top_p = 0.97f;
  const auto probability = filtered(logits, p);
  for (int key = 0; key < 3; ++key) {  // each part of the key alone gives independent draws
    constexpr int kDraws = 60000;
    std::vector<int> seen(logits.size());
    for (uint32_t i = 0; i < kDraws; ++i) {
      p.seed = key == 0 ? 1000 + uint64_t(i) * 0x100000001u : 5;
      p.choice = key == 1 ? i : 0;
      p.position = key == 2 ? i : 9;
      ++seen[size_t(run(logits, p).token)];
    }
    double chi_square = 0.0;
    int cells = 0;
    for (size_t t = 0; t < logits.size(); ++t) {
      if (probability[t] == 0.0) {
        CHECK(seen[t] == 0);
        continue;
      }
      const double expected = probability[t] * kDraws;
      CHECK(expected > 20.0, "too few draws for the statistic");
      chi_square += (seen[t] - expected) * (seen[t] - expected) / expected;
      ++cells;
    }
    const double freedom = cells - 1;
    const double bound = freedom + 2.0 * std::sqrt(freedom * 21.0) + 2.0 * 21.0;
    CHECK(chi_square < bound, "chi-square %.1f, bound %.1f, key %d", chi_square, bound, key);
  }
}

// Large vocabularies, flat and peaked, where the place is found in bins.
void test_large_vocabulary() {
  Random random(61);
  for (float magnitude : {0.0f, 0.5f, 4.0f}) {
    const auto logits = random_logits(&random, 262144, magnitude);
    SampleParams p = neutral();
    p.top_p = 0.95f;
    p.top_k = magnitude == 0.5f ? 1000 : 0;
    p.num_logprobs = 5;
    const Outcome out = run(logits, p);
    check_draw(logits, p, out.token);
    CHECK(out.top_tokens[0] == sorted_tokens(logits)[0]);
  }
}

}  // namespace
}  // namespace takt::test

int main() {
  takt::test::test_philox();
  takt::test::test_draws_agree_with_sorting();
  takt::test::test_large_vocabulary();
  // Statistics need all their draws, and touch nothing that those before do not.
  if (takt::kIsSanitized) return 0;
  takt::test::test_filters_keep_exactly_their_prefix();
  takt::test::test_filters_break_ties_by_id();
  takt::test::test_distribution();
}
