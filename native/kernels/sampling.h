// Sampling and scoring of one row of logits; see takt.ops.base for the order of operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace takt {

struct SampleParams {
  int32_t target;        // -1: sample; else the token to score
  int32_t num_logprobs;  // -1: none are reported; k: the k best too
  float temperature;
  int32_t top_k;  // 0 or less: off
  float top_p;
  float min_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  uint64_t seed;
  uint32_t choice;
  uint32_t position;
  std::span<const int32_t> history_token;  // tokens of prompt and output, each once
  std::span<const int32_t> history_count;  // times generated; 0: only in the prompt
  std::span<const int32_t> bias_token;
  std::span<const float> bias_value;
};

struct SampleResult {
  int32_t token;
  float logprob;  // of the raw model; 0 when num_logprobs < 0
  int32_t rank;   // 1 is the most likely; 0 when num_logprobs < 0
  int32_t* top_tokens;  // num_logprobs entries, most likely first, lowest id first among equals;
                        // -1 and kLowestLogprob past the vocabulary
  float* top_logprobs;
};

// The logprob reported of what is less likely, or impossible: one that JSON can hold.
inline constexpr float kLowestLogprob = -9999.0f;

// Whether the row's token is the most likely one, by raw logits, and nothing else is asked of it.
bool asks_best_only(const SampleParams& params);
// The first of the largest logits; 0 if none is larger than -inf.
int64_t best_token(const float* logits, int64_t num_logits);

// Bytes of scratch, aligned to 8 bytes or more, that sample_row needs for a vocabulary.
size_t sample_scratch_bytes(int64_t vocab_size);

// `logits` [vocab_size] is not modified. Draws with a counter-based generator (Philox 4x32-10)
// keyed by (seed, choice, position): the result depends on nothing else.
//
// The draw, which every backend makes alike: Philox4x32-10 with key (low 32 bits of seed, high 32
// bits) and counter (position, choice, 0, 0); u = (first output word + 0.5) * 2^-32 in double. The
// kept tokens are put in order of descending logit, ties by ascending id; the first whose running
// sum of probability exceeds u times the sum over all kept tokens is drawn.
// Filters see the same order: top-k keeps the first k; top-p the shortest prefix that holds top_p
// of the probability left by top-k; min-p what has at least min_p times the first's probability.
// Bias and penalties are taken in float in the order of Ops.sample, temperature and probabilities
// in double, relative to the best logit: exp((logit - best) / temperature).
// A temperature below 1e-5, top_k 1 and min_p 1 are greedy. The native backend takes e^x in float
// (within 2^-18 of it for all that can be drawn, the argument's rounding included) and counts in
// units of 2^-30 of the most likely token's probability: what has less than half a unit is never
// drawn. If bias forbids every token, the raw logits decide; if they too are all -inf or NaN, it
// is token 0.
// rank is 1 + the number of tokens before the reported one in that order, by raw logits.
void sample_row(const float* logits, int64_t vocab_size, const SampleParams& params,
                std::byte* scratch, SampleResult* result);

}  // namespace takt
