#include "program/decode_step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace takt {
namespace {

template <class T>
T* at(std::byte* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

template <class T>
void increment(T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) ++values[i];
}

}  // namespace

DecodeStep::DecodeStep(const StepLimits& limits, int64_t block_size, const FieldOffset& input,
                       const FieldOffset& output)
    : limits_(limits),
      block_size_(block_size),
      header_(input("header")),
      token_ids_(input("token_ids")),
      positions_(input("positions")),
      seq_lens_(input("seq_lens")),
      row_position_(input("row_position")),
      slot_mapping_(input("slot_mapping")),
      block_tables_(input("block_tables")),
      sampled_(output("token_ids")) {
  if (block_size < 1) throw std::invalid_argument("a block has at least one token");
}

void DecodeStep::advance(std::byte* input, const std::byte* output, int64_t step_id,
                         int64_t num_seqs) const {
  check(num_seqs);
  *at<int64_t>(input, header_) = step_id;
  const auto* sampled = reinterpret_cast<const int32_t*>(output + sampled_);
  std::copy_n(sampled, num_seqs, at<int32_t>(input, token_ids_));
  increment(at<int32_t>(input, positions_), num_seqs);
  increment(at<int32_t>(input, seq_lens_), num_seqs);
  increment(at<uint32_t>(input, row_position_), num_seqs);
  for (int64_t g = 0; g < limits_.num_kv_groups; ++g) {
    increment(at<int64_t>(input, slot_mapping_) + g * limits_.max_num_tokens, num_seqs);
  }
}

bool DecodeStep::write_blocks(std::byte* input, const BlockTablesView& tables,
                              const int64_t* rows, int64_t num_seqs, int64_t width) const {
  check(num_seqs);
  if (tables.num_groups != limits_.num_kv_groups || width > tables.width ||
      width > limits_.max_blocks_per_seq) {
    throw std::invalid_argument("these block tables do not fit into the step");
  }
  const int32_t* positions = at<int32_t>(input, positions_);
  bool has_blocks = true;
  for (int64_t g = 0; g < tables.num_groups; ++g) {
    int32_t* table = at<int32_t>(input, block_tables_) +
                     g * limits_.max_num_seqs * limits_.max_blocks_per_seq;
    int64_t* slots = at<int64_t>(input, slot_mapping_) + g * limits_.max_num_tokens;
    for (int64_t i = 0; i < num_seqs; ++i) {
      const int64_t index = positions[i] / block_size_;
      if (rows[i] < 0 || rows[i] >= tables.num_rows || index < 0 || index >= width) {
        throw std::invalid_argument("sequence " + std::to_string(i) + " has no such block");
      }
      const int32_t* blocks = tables.ids + (g * tables.num_rows + rows[i]) * tables.width;
      std::copy_n(blocks, width, table + i * limits_.max_blocks_per_seq);
      slots[i] = blocks[index] * block_size_ + positions[i] % block_size_;
      has_blocks = has_blocks && blocks[index] >= 0;
    }
  }
  return has_blocks;
}

void DecodeStep::check(int64_t num_seqs) const {
  if (num_seqs < 0 || num_seqs > limits_.max_num_seqs || num_seqs > limits_.max_num_tokens ||
      num_seqs > limits_.max_num_rows) {
    throw std::invalid_argument("a step has no room for " + std::to_string(num_seqs) +
                                " sequences");
  }
}

}  // namespace takt
