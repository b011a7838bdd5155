#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/activation.h"
#include "kernels/philox.h"
#include "kernels/sampling_kernels.h"
#include "kernels/token_order.h"
#include "kernels/weighted_tokens.h"

namespace takt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

const SamplingKernels& kernels() {
  static constexpr const SamplingKernels* kTables[] =
      TAKT_ISA_TABLES(kSamplingKernels);
  return *kTables[isa_index()];
}

struct Scratch {
  float* logits;     // [vocab_size]
  uint32_t* weight;  // [vocab_size]
  std::byte* order;  // WeightedTokens' own, or keys [vocab_size]

  Scratch(std::byte* at, int64_t vocab_size) {
    const size_t row = align64(size_t(vocab_size) * 4);
    logits = reinterpret_cast<float*>(at);
    weight = reinterpret_cast<uint32_t*>(at + row);
    order = at + 2 * row;
  }
};

bool penalises(const SampleParams& p) {
  return !p.history_token.empty() && (p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f ||
                                      p.frequency_penalty != 0.0f);
}

// What these would leave to chance is a tie, or next to one.
bool is_greedy(const SampleParams& p) {
  return p.temperature < 1e-5f || p.top_k == 1 || p.min_p >= 1.0f;
}

void adjust(const SampleParams& p, float* logits) {
  for (size_t i = 0; i < p.bias_token.size(); ++i) logits[p.bias_token[i]] += p.bias_value[i];
  if (!penalises(p)) return;
  for (size_t i = 0; i < p.history_token.size(); ++i) {
    float& x = logits[p.history_token[i]];
    x = x > 0.0f ? x / p.repetition_penalty : x * p.repetition_penalty;
    x -= float(p.history_count[i]) * p.frequency_penalty;
    if (p.history_count[i] > 0) x -= p.presence_penalty;
  }
}

// Integer division of (2 r + 1) * weight by 2^33: the draw's u times weight, rounded down.
uint64_t drawn_weight(const SampleParams& p, uint64_t weight) {
  const uint32_t r = philox4x32_10({uint32_t(p.seed), uint32_t(p.seed >> 32)},
                                   {p.position, p.choice, 0, 0})[0];
  return uint64_t((unsigned __int128)(2 * uint64_t(r) + 1) * weight >> 33);
}

int32_t draw(const SampleParams& p, const float* logits, int64_t vocab_size, float max,
             const Scratch& scratch) {
  const float inverse_temperature = 1.0f / p.temperature;
  kernels().weights(logits, vocab_size, max, inverse_temperature, scratch.weight);
  WeightedTokens tokens(logits, scratch.weight, vocab_size, max, inverse_temperature,
                        scratch.order);
  // Each filter keeps a prefix of the order, which its weight tells.
  uint64_t kept = tokens.weight();
  if (p.top_k > 0 && p.top_k < tokens.count()) kept = tokens.weight_of_first(p.top_k);
  if (p.top_p < 1.0f) {
    const double share = std::ceil(double(p.top_p) * double(kept));
    kept = tokens.find(share < 1.0 ? 0 : uint64_t(share) - 1).running_weight;
  }
  if (p.min_p > 0.0f) {
    const auto least = uint32_t(std::ceil(double(p.min_p) * double(kWeightOne)));
    kept = std::min(kept, tokens.weight_of_at_least(least));
  }
  return tokens.find(drawn_weight(p, kept)).token;
}

int32_t sample(const SampleParams& p, const float* raw, int64_t vocab_size,
               const Scratch& scratch) {
  const float* logits = raw;
  if (!p.bias_token.empty() || penalises(p)) {
    std::memcpy(scratch.logits, raw, size_t(vocab_size) * sizeof(float));
    adjust(p, scratch.logits);
    logits = scratch.logits;
  }
  const int64_t best = kernels().argmax(logits, vocab_size);
  float max = logits[best];
  if (!(max > -kInfinity)) return int32_t(kernels().argmax(raw, vocab_size));  // all forbidden
  if (is_greedy(p)) return int32_t(best);
  if (max == kInfinity) {  // equal infinities are equal numbers
    for (int64_t i = 0; i < vocab_size; ++i) scratch.logits[i] = std::min(logits[i], kLargest);
    logits = scratch.logits;
    max = kLargest;
  }
  return draw(p, logits, vocab_size, max, scratch);
}

// Logarithms of probabilities of the raw model.
class Logprobs {
 public:
  Logprobs(const float* logits, int64_t vocab_size) {
    const float max = logits[kernels().argmax(logits, vocab_size)];
    if (!(max > -kInfinity)) return;  // no token has any probability
    log_sum_ = max < kInfinity
                   ? double(max) + std::log(kernels().sum_exp(logits, vocab_size, max))
                   : kInfinity;
  }

  float of(float logit) const {
    const double logprob = double(logit) - log_sum_;
    return logprob > double(kLowestLogprob) ? float(std::min(logprob, 0.0)) : kLowestLogprob;
  }

 private:
  double log_sum_ = kInfinity;
};

// Keys of the k first tokens in order. A heap holds the best so far, the last of them on top; what
// can't get in is passed over sixteen at a time.
void first_tokens(const float* logits, int64_t vocab_size, int64_t k, uint64_t* keys) {
  for (int64_t i = 0; i < k; ++i) keys[i] = token_key(logits[i], i);
  std::make_heap(keys, keys + k);
  for (int64_t i = k; k > 0;) {
    const float last = logits[token_of_key(keys[0])];
    i = kernels().find_above(logits, i, vocab_size, std::isnan(last) ? -kInfinity : last);
    if (i >= vocab_size) break;
    std::pop_heap(keys, keys + k);
    keys[k - 1] = token_key(logits[i], i);
    std::push_heap(keys, keys + k);
    ++i;
  }
  std::sort_heap(keys, keys + k);
}

void report(const float* logits, int64_t vocab_size, int32_t num_logprobs, const Scratch& scratch,
            SampleResult* result) {
  const Logprobs logprobs(logits, vocab_size);
  result->logprob = logprobs.of(logits[result->token]);
  result->rank = int32_t(1 + kernels().count_ahead(logits, vocab_size, result->token));
  auto* keys = reinterpret_cast<uint64_t*>(scratch.order);
  const int64_t k = std::min<int64_t>(num_logprobs, vocab_size);
  first_tokens(logits, vocab_size, k, keys);
  for (int64_t i = 0; i < num_logprobs; ++i) {
    result->top_tokens[i] = i < k ? token_of_key(keys[i]) : -1;
    result->top_logprobs[i] = i < k ? logprobs.of(logits[token_of_key(keys[i])]) : kLowestLogprob;
  }
}

}  // namespace

size_t sample_scratch_bytes(int64_t vocab_size) {
  return 2 * align64(size_t(vocab_size) * 4) + WeightedTokens::scratch_bytes(vocab_size);
}

bool asks_best_only(const SampleParams& p) {
  return p.target < 0 && p.num_logprobs < 0 && is_greedy(p) && p.bias_token.empty() &&
         !penalises(p);
}

int64_t best_token(const float* logits, int64_t num_logits) {
  return kernels().argmax(logits, num_logits);
}

void sample_row(const float* logits, int64_t vocab_size, const SampleParams& params,
                std::byte* scratch, SampleResult* result) {
  const Scratch parts(scratch, vocab_size);
  result->token =
      params.target >= 0 ? params.target : sample(params, logits, vocab_size, parts);
  result->logprob = 0.0f;
  result->rank = 0;
  if (params.num_logprobs >= 0) report(logits, vocab_size, params.num_logprobs, parts, result);
}

}  // namespace takt
