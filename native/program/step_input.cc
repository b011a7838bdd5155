#include "program/step_input.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

#include "program/kv_pool.h"

namespace takt {
namespace {

[[noreturn]] void refuse(const std::string& what, int64_t value, int64_t low, int64_t high) {
  throw std::invalid_argument("step input: " + what + " is " + std::to_string(value) +
                              ", outside of " + std::to_string(low) + " to " +
                              std::to_string(high));
}

void check(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) refuse(what, value, low, high);
}

template <class T>
void check_all(const char* what, std::span<const T> values, int64_t low, int64_t high) {
  T least = T(low), most = T(low);  // one branch-free pass; the culprit is sought only on failure
  for (const T v : values) {
    least = std::min(least, v);
    most = std::max(most, v);
  }
  if (least >= low && most <= high) return;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < low || values[i] > high) {
      refuse(std::string(what) + "[" + std::to_string(i) + "]", values[i], low, high);
    }
  }
}

// `start` holds n + 1 borders of ranges within [0, limit].
void check_borders(const char* what, const int32_t* start, int n, int64_t limit) {
  check(what, start[0], 0, 0);
  for (int i = 0; i < n; ++i) check(what, start[i + 1], start[i], limit);
}

size_t input_bytes(const StepLimits& l, size_t last_field) {
  return last_field + size_t(std::max<int64_t>(l.max_num_biases, 1)) * 4;
}

}  // namespace

StepInput::StepInput(const StepLimits& limits, const FieldOffset& offset, Int8Tokens int8_tokens)
    : limits_(limits),
      int8_tokens_(int8_tokens),
      header_at_(offset("header")),
      token_ids_(offset("token_ids")),
      positions_(offset("positions")),
      query_start_(offset("query_start")),
      seq_lens_(offset("seq_lens")),
      slot_mapping_(offset("slot_mapping")),
      block_tables_(offset("block_tables")),
      block_copies_(offset("block_copies")),
      row_tokens_(offset("row_tokens")),
      row_targets_(offset("row_targets")),
      row_num_logprobs_(offset("row_num_logprobs")),
      row_temperature_(offset("row_temperature")),
      row_top_k_(offset("row_top_k")),
      row_top_p_(offset("row_top_p")),
      row_min_p_(offset("row_min_p")),
      row_repetition_penalty_(offset("row_repetition_penalty")),
      row_presence_penalty_(offset("row_presence_penalty")),
      row_frequency_penalty_(offset("row_frequency_penalty")),
      row_seed_(offset("row_seed")),
      row_choice_(offset("row_choice")),
      row_position_(offset("row_position")),
      history_start_(offset("history_start")),
      history_token_(offset("history_token")),
      history_count_(offset("history_count")),
      bias_start_(offset("bias_start")),
      bias_token_(offset("bias_token")),
      bias_value_(offset("bias_value")),
      copy_(input_bytes(limits, bias_value_)) {}

void StepInput::copy(const std::byte* source, size_t offset, size_t bytes) {
  std::memcpy(copy_.data() + offset, source + offset, bytes);
}

void StepInput::load(const std::byte* source, const StepBounds& bounds) {
  load_header(source);
  load_sequences(source, bounds);
  if (bounds.kv != nullptr) load_blocks(source, *bounds.kv);
  load_rows(source, bounds.vocab_size);
}

void StepInput::load_header(const std::byte* source) {
  int64_t header[8];
  std::memcpy(header, source + header_at_, sizeof header);
  check("num_tokens", header[1], 1, limits_.max_num_tokens);
  check("num_seqs", header[2], 1, limits_.max_num_seqs);
  check("num_rows", header[3], 0, limits_.max_num_rows);
  check("num_block_copies", header[4], 0, limits_.max_num_block_copies);
  check("num_generated", header[5], 0, header[1]);
  std::memcpy(header_, header, sizeof header_);
}

void StepInput::load_sequences(const std::byte* source, const StepBounds& bounds) {
  const size_t tokens = size_t(num_tokens()), seqs = size_t(num_seqs());
  copy(source, token_ids_, tokens * 4);
  copy(source, positions_, tokens * 4);
  copy(source, query_start_, (seqs + 1) * 4);
  copy(source, seq_lens_, seqs * 4);
  if (bounds.vocab_size > 0) {
    check_all<int32_t>("token_ids", {token_ids(), tokens}, 0, bounds.vocab_size - 1);
  }
  check_all<int32_t>("positions", {positions(), tokens}, 0, bounds.max_position - 1);
  check_borders("query_start", query_start(), num_seqs(), num_tokens());
  check("query_start[num_seqs]", query_start()[seqs], num_tokens(), num_tokens());
}

void StepInput::load_blocks(const std::byte* source, const KVPool& kv) {
  const int64_t size = kv.block_size();
  check_all<int32_t>("seq_lens", {seq_lens(), size_t(num_seqs())}, 1,
                     limits_.max_blocks_per_seq * size);
  for (int g = 0; g < kv.num_groups(); ++g) {
    const size_t slots = slot_mapping_ + size_t(g * limits_.max_num_tokens) * 8;
    copy(source, slots, size_t(num_tokens()) * 8);
    check_all<int64_t>("slot_mapping", {slot_mapping(g), size_t(num_tokens())}, 0,
                       kv.num_blocks(g) * size - 1);
    for (int s = 0; s < num_seqs(); ++s) {
      const size_t blocks = size_t((seq_lens()[s] + size - 1) / size);
      const int64_t row = g * limits_.max_num_seqs + s;
      copy(source, block_tables_ + size_t(row * limits_.max_blocks_per_seq) * 4, blocks * 4);
      check_all<int32_t>("block_tables", {block_table(g, s), blocks}, -1, kv.num_blocks(g) - 1);
    }
  }
  for (int s = 0; s < num_seqs(); ++s) {
    const int32_t end = query_start()[s + 1];
    for (int32_t i = query_start()[s]; i < end; ++i) {  // consecutive, up to the context's end
      const int32_t expected = seq_lens()[s] - (end - i);
      check("a position", positions()[i], expected, expected);
    }
  }
  copy(source, block_copies_, size_t(num_block_copies()) * 12);
  for (int i = 0; i < num_block_copies(); ++i) {
    const int32_t* entry = block_copies() + 3 * i;
    check("block_copies' group", entry[0], 0, kv.num_groups() - 1);
    check("block_copies' source", entry[1], 0, kv.num_blocks(entry[0]) - 1);
    check("block_copies' destination", entry[2], 0, kv.num_blocks(entry[0]) - 1);
  }
}

void StepInput::load_rows(const std::byte* source, int64_t vocab_size) {
  const size_t rows = size_t(num_rows());
  for (const size_t field :
       {row_tokens_, row_targets_, row_num_logprobs_, row_temperature_, row_top_k_, row_top_p_,
        row_min_p_, row_repetition_penalty_, row_presence_penalty_, row_frequency_penalty_,
        row_choice_, row_position_}) {
    copy(source, field, rows * 4);
  }
  copy(source, row_seed_, rows * 8);
  check_all<int32_t>("row_tokens", {row_tokens(), rows}, 0, num_tokens() - 1);
  check_all<int32_t>("row_num_logprobs", {row_num_logprobs(), rows}, -1, limits_.max_logprobs);
  bool is_past_generated = false;
  for (size_t r = 0; r < rows; ++r) {
    const bool is_generated = row_tokens()[r] < num_q8_tokens();
    check("a row of a generated token after one of a prompt", is_generated && is_past_generated, 0,
          0);
    is_past_generated = !is_generated;
  }
  if (rows == 0) return;
  copy(source, history_start_, (rows + 1) * 4);
  copy(source, bias_start_, (rows + 1) * 4);
  check_borders("history_start", history_start(), num_rows(), limits_.max_num_history);
  check_borders("bias_start", bias_start(), num_rows(), limits_.max_num_biases);
  const size_t history = size_t(history_start()[rows]), biases = size_t(bias_start()[rows]);
  copy(source, history_token_, history * 4);
  copy(source, history_count_, history * 4);
  copy(source, bias_token_, biases * 4);
  copy(source, bias_value_, biases * 4);
  if (vocab_size > 0) {
    check_all<int32_t>("row_targets", {row_targets(), rows}, -1, vocab_size - 1);
    check_all<int32_t>("history_token", {history_token(), history}, 0, vocab_size - 1);
    check_all<int32_t>("bias_token", {bias_token(), biases}, 0, vocab_size - 1);
  }
}

}  // namespace takt
