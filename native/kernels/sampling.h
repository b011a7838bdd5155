// Sampling and scoring of one row of logits; see takt.ops.base for the order of operations.
#pragma once
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
  std::span<const int32_t> history_token;  // tokens of prompt and output
  std::span<const int32_t> history_count;  // times generated; 0: only in the prompt
  std::span<const int32_t> bias_token;
  std::span<const float> bias_value;
};

struct SampleResult {
  int32_t token;
  float logprob;  // of the raw model; 0 when num_logprobs < 0
  int32_t rank;   // 1 is the most likely
  int32_t* top_tokens;  // num_logprobs entries, most likely first, lowest id first among equals
  float* top_logprobs;
};

// Bytes of scratch that sample_row needs for a vocabulary.
size_t sample_scratch_bytes(int64_t vocab_size);

// `logits` [vocab_size] is not modified. Draws with a counter-based generator (Philox 4x32-10) keyed
// by (seed, choice, position): the result depends on nothing else.
void sample_row(const float* logits, int64_t vocab_size, const SampleParams& params,
                std::byte* scratch, SampleResult* result);

}  // namespace takt
