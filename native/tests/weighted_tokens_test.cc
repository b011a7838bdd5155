// Searching weighted tokens, against a sorted list: exact, as the weights are integers.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/weighted_tokens.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt {
namespace {

using test::Random;

struct Vocabulary {
  std::vector<float> logits;
  std::vector<uint32_t> weight;
  float max = 0.0f;
  std::vector<int32_t> order;  // of tokens with weight
};

// Logits in steps, so that many are equal; small weights, some 0.
Vocabulary random_vocabulary(Random* random, int64_t n, int64_t num_values) {
  Vocabulary v;
  for (int64_t i = 0; i < n; ++i) {
    const auto step = random->below(num_values);
    v.logits.push_back(-20.0f * float(step) / float(num_values));
    v.weight.push_back(uint32_t(random->below(4)));
  }
  v.logits[0] = v.max;
  v.weight[0] = 3;
  for (int32_t t = 0; t < int32_t(n); ++t) {
    if (v.weight[size_t(t)] > 0) v.order.push_back(t);
  }
  std::stable_sort(v.order.begin(), v.order.end(), [&](int32_t a, int32_t b) {
    return v.logits[size_t(a)] > v.logits[size_t(b)];
  });
  return v;
}

void check(const Vocabulary& v) {
  const auto n = int64_t(v.logits.size());
  std::vector<uint64_t> scratch(WeightedTokens::scratch_bytes(n) / 8 + 1);
  WeightedTokens tokens(v.logits.data(), v.weight.data(), n, v.max, 1.0f,
                        reinterpret_cast<std::byte*>(scratch.data()));
  CHECK(tokens.count() == int64_t(v.order.size()));
  CHECK(tokens.weight() == std::accumulate(v.weight.begin(), v.weight.end(), uint64_t{0}));
  uint64_t running = 0;
  for (size_t i = 0; i < v.order.size(); ++i) {
    const uint32_t weight = v.weight[size_t(v.order[i])];
    for (uint64_t target = running; target < running + weight; ++target) {
      const auto place = tokens.find(target);
      CHECK(place.token == v.order[i], "target %d: token %d, not %d", int(target), place.token,
            v.order[i]);
      CHECK(place.running_weight == running + weight);
    }
    running += weight;
    CHECK(tokens.weight_of_first(int64_t(i) + 1) == running, "first %zu", i + 1);
  }
  for (uint32_t least = 0; least < 5; ++least) {
    uint64_t want = 0;
    for (uint32_t w : v.weight) want += w >= least ? w : 0;
    CHECK(tokens.weight_of_at_least(least) == want);
  }
}

void test_every_place() {
  Random random(71);
  for (int64_t n : {1, 2, 17, 100, 300}) {
    for (int64_t num_values : {1, 2, 10, 1000}) check(random_vocabulary(&random, n, num_values));
  }
}

// Sums far above 32 bits.
void test_large_weights() {
  Vocabulary v;
  v.logits.assign(64, 0.0f);
  v.weight.assign(64, uint32_t{1} << 30);
  std::vector<uint64_t> scratch(WeightedTokens::scratch_bytes(64) / 8 + 1);
  WeightedTokens tokens(v.logits.data(), v.weight.data(), 64, 0.0f, 1.0f,
                        reinterpret_cast<std::byte*>(scratch.data()));
  CHECK(tokens.weight() == uint64_t{1} << 36);
  CHECK(tokens.find((uint64_t{1} << 35) - 1).token == 31);
  CHECK(tokens.find(uint64_t{1} << 35).token == 32);
  CHECK(tokens.weight_of_first(63) == (uint64_t{1} << 36) - (uint64_t{1} << 30));
}

}  // namespace
}  // namespace takt

int main() {
  takt::test_every_place();
  takt::test_large_weights();
}
