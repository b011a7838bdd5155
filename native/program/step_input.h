// A step's input as the program keeps it: a private copy of the used parts of a StepInput.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "program/memory.h"

namespace takt {

class KVPool;

// Sizes that the buffers of a step are made for; the same as takt.types.step.StepLimits.
struct StepLimits {
  int64_t max_num_tokens;
  int64_t max_num_seqs;
  int64_t max_num_rows;
  int64_t max_blocks_per_seq;
  int64_t num_kv_groups;
  int64_t max_num_block_copies;
  int64_t max_num_history;
  int64_t max_num_biases;
  int64_t max_logprobs;
};

// Byte offset of a field by its name; throws if there is no such field.
using FieldOffset = std::function<size_t(const std::string&)>;

// What the values of a StepInput are checked against.
struct StepBounds {
  int64_t vocab_size;    // token ids are below it
  int64_t max_position;  // positions are below it
  const KVPool* kv;      // null: no attention
};

// Tokens that products with quantised weights take as q8 rows; the others are bf16 rows.
enum class Int8Tokens { kAll, kGenerated, kNone };

class StepInput {
 public:
  // With kGenerated the header says how many tokens, the first ones, are generated.
  StepInput(const StepLimits& limits, const FieldOffset& offset, Int8Tokens int8_tokens);

  // Copies what the header says is used. Throws std::invalid_argument with a sentence if a count,
  // token, position, slot or block is outside of what the program was made for.
  void load(const std::byte* source, const StepBounds& bounds);

  int64_t step_id() const { return header_[0]; }
  int num_tokens() const { return int(header_[1]); }
  int num_seqs() const { return int(header_[2]); }
  int num_rows() const { return int(header_[3]); }
  int num_block_copies() const { return int(header_[4]); }
  // The first so many tokens, and of logits their rows, are q8 rows.
  int num_q8_tokens() const {
    if (int8_tokens_ == Int8Tokens::kAll) return num_tokens();
    return int8_tokens_ == Int8Tokens::kGenerated ? int(header_[5]) : 0;
  }

  const int32_t* token_ids() const { return at<int32_t>(token_ids_); }
  const int32_t* positions() const { return at<int32_t>(positions_); }
  const int32_t* query_start() const { return at<int32_t>(query_start_); }
  const int32_t* seq_lens() const { return at<int32_t>(seq_lens_); }
  const int64_t* slot_mapping(int group) const {
    return at<int64_t>(slot_mapping_) + group * limits_.max_num_tokens;
  }
  const int32_t* block_table(int group, int seq) const {
    return at<int32_t>(block_tables_) +
           (group * limits_.max_num_seqs + seq) * limits_.max_blocks_per_seq;
  }
  const int32_t* block_copies() const { return at<int32_t>(block_copies_); }  // (group, from, to)
  const int32_t* row_tokens() const { return at<int32_t>(row_tokens_); }

  // Sampling of rows; see takt.types.step.
  const int32_t* row_targets() const { return at<int32_t>(row_targets_); }
  const int32_t* row_num_logprobs() const { return at<int32_t>(row_num_logprobs_); }
  const float* row_temperature() const { return at<float>(row_temperature_); }
  const int32_t* row_top_k() const { return at<int32_t>(row_top_k_); }
  const float* row_top_p() const { return at<float>(row_top_p_); }
  const float* row_min_p() const { return at<float>(row_min_p_); }
  const float* row_repetition_penalty() const { return at<float>(row_repetition_penalty_); }
  const float* row_presence_penalty() const { return at<float>(row_presence_penalty_); }
  const float* row_frequency_penalty() const { return at<float>(row_frequency_penalty_); }
  const uint64_t* row_seed() const { return at<uint64_t>(row_seed_); }
  const uint32_t* row_choice() const { return at<uint32_t>(row_choice_); }
  const uint32_t* row_position() const { return at<uint32_t>(row_position_); }
  const int32_t* history_start() const { return at<int32_t>(history_start_); }
  const int32_t* history_token() const { return at<int32_t>(history_token_); }
  const int32_t* history_count() const { return at<int32_t>(history_count_); }
  const int32_t* bias_start() const { return at<int32_t>(bias_start_); }
  const int32_t* bias_token() const { return at<int32_t>(bias_token_); }
  const float* bias_value() const { return at<float>(bias_value_); }

 private:
  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(copy_.data() + offset);
  }
  void copy(const std::byte* source, size_t offset, size_t bytes);
  void load_header(const std::byte* source);
  void load_sequences(const std::byte* source, const StepBounds& bounds);
  void load_blocks(const std::byte* source, const KVPool& kv);
  void load_rows(const std::byte* source, int64_t vocab_size);

  StepLimits limits_;
  Int8Tokens int8_tokens_;
  int64_t header_[8] = {};
  size_t header_at_, token_ids_, positions_, query_start_, seq_lens_, slot_mapping_, block_tables_,
      block_copies_, row_tokens_, row_targets_, row_num_logprobs_, row_temperature_, row_top_k_,
      row_top_p_, row_min_p_, row_repetition_penalty_, row_presence_penalty_,
      row_frequency_penalty_, row_seed_, row_choice_, row_position_, history_start_,
      history_token_, history_count_, bias_start_, bias_token_, bias_value_;
  Memory copy_;
};

}  // namespace takt
