// Greedy choices, penalties, bias, logprobs and ranks of one row, and rows that are not numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/sampling_reference.h"

namespace takt::test {
namespace {

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

// The sum of exponentials is within 2^-22 and its logarithm adds as much.
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

}  // namespace
}  // namespace takt::test

int main() {
  takt::test::test_greedy_and_its_equivalents();
  takt::test::test_logprobs_and_ranks();
  takt::test::test_logprobs_are_raw();
  takt::test::test_penalties_and_bias();
  takt::test::test_unusual_rows();
  takt::test::test_everything_forbidden_falls_back_to_the_model();
}
