// What the tests of sampling share: neutral parameters, a call on every instruction set, and the
// order of tokens by sorting.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/linear.h"
#include "kernels/sampling.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Outcome {
  int32_t token;
  float logprob;
  int32_t rank;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  bool operator==(const Outcome&) const = default;
};

inline SampleParams neutral() {
  return {.target = -1, .num_logprobs = -1, .temperature = 1.0f, .top_k = 0, .top_p = 1.0f,
          .min_p = 0.0f, .repetition_penalty = 1.0f, .presence_penalty = 0.0f,
          .frequency_penalty = 0.0f, .seed = 1, .choice = 0, .position = 0, .history_token = {},
          .history_count = {}, .bias_token = {}, .bias_value = {}};
}

inline Outcome run(const std::vector<float>& logits, const SampleParams& params) {
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
inline Outcome on_every_isa(const std::vector<float>& logits, const SampleParams& params) {
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

inline std::vector<float> random_logits(Random* random, int64_t n, float magnitude) {
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) {  // a sum of uniform numbers is peaked, as logits are
    x = 0.0f;
    for (int i = 0; i < 4; ++i) x += random->between(-magnitude, magnitude);
  }
  return logits;
}

inline std::vector<int32_t> sorted_tokens(const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] > logits[size_t(b)];
  });
  return order;
}

}  // namespace takt::test
