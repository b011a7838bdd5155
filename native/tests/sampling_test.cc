// Sampling of one row against a slow reference that sorts, on every instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/linear.h"
#include "kernels/philox.h"
#include "kernels/sampling.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt {
namespace {

using test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Outcome {
  int32_t token;
  float logprob;
  int32_t rank;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  bool operator==(const Outcome&) const = default;
};

SampleParams neutral() {
  return {.target = -1, .num_logprobs = -1, .temperature = 1.0f, .top_k = 0, .top_p = 1.0f,
          .min_p = 0.0f, .repetition_penalty = 1.0f, .presence_penalty = 0.0f,
          .frequency_penalty = 0.0f, .seed = 1, .choice = 0, .position = 0, .history_token = {},
          .history_count = {}, .bias_token = {}, .bias_value = {}};
}

Outcome run(const std::vector<float>& logits, const SampleParams& params) {
  std::vector<uint64_t> scratch(sample_scratch_bytes(int64_t(logits.size())) / 8 + 1);
  const auto k = size_t(std::max(params.num_logprobs, 0));
  Outcome out = {-7, 0, 0, std::vector<int32_t>(k, -7), std::vector<float>(k, kNaN)};
  SampleResult result = {-7, kNaN, -7, out.top_tokens.data(), out.top_logprobs.data()};
  const std::vector<float> before = logits;
  sample_row(logits.data(), int64_t(logits.size()), params,
             reinterpret_cast<std::byte*>(scratch.data()), &result);
  CHECK(std::memcmp(before.data(), logits.data(), logits.size() * 4) == 0, "logits were changed");
  out.token = result.token;
  out.logprob = result.logprob;
  out.rank = result.rank;
  return out;
}

// The same outcome on every instruction set.
Outcome on_every_isa(const std::vector<float>& logits, const SampleParams& params) {
  Outcome first;
  bool is_first = true;
  for (const char* isa : available_isas()) {
    select_isa(isa);
    const Outcome out = run(logits, params);
    if (is_first) first = out;
    is_first = false;
    CHECK(out == first, "%s: token %d, not %d", isa, out.token, first.token);
  }
  select_isa(nullptr);
  return first;
}

std::vector<float> random_logits(Random* random, int64_t n, float magnitude) {
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) {  // a sum of uniform numbers is peaked, as logits are
    x = 0.0f;
    for (int i = 0; i < 4; ++i) x += random->between(-magnitude, magnitude);
  }
  return logits;
}

std::vector<int32_t> sorted_tokens(const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] > logits[size_t(b)];
  });
  return order;
}

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
      for (int trial = 0; trial < 40; ++trial) {
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

void test_greedy_and_its_equivalents() {
  Random random(41);
  for (int64_t vocab : {1, 3, 16, 1000, 1024, 1025, 5000}) {
    auto logits = random_logits(&random, vocab, 3.0f);
    const float top = *std::max_element(logits.begin(), logits.end()) + 1.0f;
    const auto first = int32_t(random.below(vocab));
    for (int i = 0; i < 4; ++i) {
      logits[size_t(first + random.below(vocab - first))] = top;
    }
    logits[size_t(first)] = top;
    SampleParams greedy = neutral();
    greedy.temperature = 0.0f;
    CHECK(on_every_isa(logits, greedy).token == first);
    SampleParams cold = neutral();
    cold.temperature = 1e-9f;
    CHECK(on_every_isa(logits, cold).token == first);
    SampleParams top_k = neutral();
    top_k.top_k = 1;
    CHECK(on_every_isa(logits, top_k).token == first);
    SampleParams top_p = neutral();
    top_p.top_p = 1e-9f;
    top_p.temperature = 2.0f;
    CHECK(on_every_isa(logits, top_p).token == first);
    SampleParams min_p = neutral();
    min_p.min_p = 1.0f;
    CHECK(on_every_isa(logits, min_p).token == first);
  }
}

// With u = 2^-53, the sum of exponentials is within 2^-22 and its logarithm adds as much.
void test_logprobs_and_ranks() {
  Random random(51);
  for (int64_t vocab : {1, 17, 1000, 4099}) {
    auto logits = random_logits(&random, vocab, 4.0f);
    for (float& x : logits) x = std::round(x * 8.0f) / 8.0f;  // ties
    if (vocab > 5) logits[3] = -kInf;
    const auto order = sorted_tokens(logits);
    double sum = 0.0;
    for (float x : logits) sum += std::exp(double(x) - double(logits[size_t(order[0])]));
    const double log_sum = double(logits[size_t(order[0])]) + std::log(sum);
    for (int32_t target : {0, int32_t(vocab / 2), int32_t(vocab - 1)}) {
      SampleParams p = neutral();
      p.target = target;
      p.num_logprobs = 20;
      const Outcome out = on_every_isa(logits, p);
      CHECK(out.token == target);
      const auto rank = std::find(order.begin(), order.end(), target) - order.begin() + 1;
      CHECK(out.rank == rank, "rank %d, not %d", out.rank, int(rank));
      const double want = double(logits[size_t(target)]) - log_sum;
      CHECK(std::abs(double(out.logprob) - want) <= 0x1p-21 + std::abs(want) * 0x1p-23);
      for (size_t i = 0; i < 20; ++i) {
        if (i >= size_t(vocab)) {
          CHECK(out.top_tokens[i] == -1 && out.top_logprobs[i] == kLowestLogprob);
          continue;
        }
        CHECK(out.top_tokens[i] == order[i], "place %zu: %d, not %d", i, out.top_tokens[i],
              order[i]);
        const double lp = double(logits[size_t(order[i])]) - log_sum;
        CHECK(std::abs(double(out.top_logprobs[i]) - lp) <= 0x1p-21 + std::abs(lp) * 0x1p-23);
      }
    }
  }
}

// Reported logprobs are the raw model's, whatever is done to the logits before the draw.
void test_logprobs_are_raw() {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  const std::vector<int32_t> token = {1};
  const std::vector<float> value = {-kInf};
  SampleParams p = neutral();
  p.temperature = 0.0f;
  p.num_logprobs = 1;
  p.bias_token = token;
  p.bias_value = value;
  const Outcome out = on_every_isa(logits, p);
  CHECK(out.token == 2 && out.rank == 2 && out.top_tokens[0] == 1);
  const double want = 2.0 - std::log(std::exp(1.0) + std::exp(3.0) + std::exp(2.0));
  CHECK(std::abs(double(out.logprob) - want) < 1e-6);
}

void test_penalties_and_bias() {
  const std::vector<float> logits = {2.0f, -2.0f, 1.0f, 0.5f};
  const std::vector<int32_t> history = {0, 1};
  const std::vector<int32_t> counts = {0, 3};
  SampleParams p = neutral();
  p.history_token = history;
  p.history_count = counts;
  const auto best_with_bias = [&](int32_t token, float bias) {
    const std::vector<int32_t> bias_token = {token};
    const std::vector<float> bias_value = {bias};
    SampleParams q = p;
    q.temperature = 0.0f;
    q.bias_token = bias_token;
    q.bias_value = bias_value;
    return on_every_isa(logits, q).token;
  };
  p.repetition_penalty = 4.0f;  // token 0: 2 / 4 = 0.5, below token 2's 1
  CHECK(best_with_bias(3, 0.0f) == 2);
  CHECK(best_with_bias(2, -0.75f) == 0);  // 0.5 against 0.5 and 0.25: the lower id
  CHECK(best_with_bias(1, 2.5f) == 2);    // bias comes first: 0.5 / 4
  p.repetition_penalty = 1.0f;
  p.presence_penalty = 100.0f;  // token 0 was not generated
  CHECK(best_with_bias(3, 0.0f) == 0);
  CHECK(best_with_bias(1, 104.5f) == 1);  // -2 + 104.5 - 100 = 2.5
  CHECK(best_with_bias(1, 103.5f) == 0);
  p.presence_penalty = 0.0f;
  p.frequency_penalty = 10.0f;  // three times
  CHECK(best_with_bias(1, 34.5f) == 1);
  CHECK(best_with_bias(1, 33.5f) == 0);
  p.repetition_penalty = 2.0f;  // a negative logit is multiplied: -2 * 2 = -4
  p.frequency_penalty = 0.0f;
  const std::vector<float> negative = {-4.5f, -2.0f, -100.0f, -100.0f};
  SampleParams q = p;
  q.temperature = 0.0f;
  const std::vector<int32_t> only = {1};
  q.history_token = only;
  q.history_count = only;
  CHECK(on_every_isa(negative, q).token == 1);
  q.repetition_penalty = 2.5f;
  CHECK(on_every_isa(negative, q).token == 0);
}

void test_unusual_rows() {
  const size_t vocab = 70;
  for (const float fill : {-kInf, kNaN, kInf, 0.0f, -3e38f, 3e38f}) {
    for (const float temperature : {0.0f, 1.0f, 1e-5f, 1e30f}) {
      const std::vector<float> logits(vocab, fill);
      SampleParams p = neutral();
      p.temperature = temperature;
      p.top_p = 0.9f;
      p.num_logprobs = 3;
      const Outcome out = on_every_isa(logits, p);
      CHECK(out.token >= 0 && out.token < int32_t(vocab));
      CHECK(std::isfinite(out.logprob) && out.logprob <= 0.0f);
      for (float x : out.top_logprobs) CHECK(std::isfinite(x) && x <= 0.0f);
    }
  }
  std::vector<float> logits(vocab, kNaN);
  logits[13] = -5.0f;
  logits[14] = -kInf;
  SampleParams p = neutral();
  p.num_logprobs = 1;
  const Outcome out = on_every_isa(logits, p);
  CHECK(out.token == 13 && out.rank == 1 && out.logprob == 0.0f && out.top_tokens[0] == 13);
}

void test_everything_forbidden_falls_back_to_the_model() {
  const std::vector<float> logits = {1.0f, 2.0f, 0.0f};
  const std::vector<int32_t> token = {0, 1, 2};
  const std::vector<float> value(3, -kInf);
  SampleParams p = neutral();
  p.bias_token = token;
  p.bias_value = value;
  CHECK(on_every_isa(logits, p).token == 1);
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
}  // namespace takt

int main() {
  takt::test_philox();
  takt::test_draws_agree_with_sorting();
  takt::test_filters_keep_exactly_their_prefix();
  takt::test_filters_break_ties_by_id();
  takt::test_distribution();
  takt::test_greedy_and_its_equivalents();
  takt::test_logprobs_and_ranks();
  takt::test_logprobs_are_raw();
  takt::test_penalties_and_bias();
  takt::test_unusual_rows();
  takt::test_everything_forbidden_falls_back_to_the_model();
  takt::test_large_vocabulary();
}
