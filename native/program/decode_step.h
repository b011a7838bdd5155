// The step after one that decoded: the same sequences, one token further each, written over the
// step before. What a sequence asks of the sampler stays where it is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "program/step_input.h"

namespace takt {

// Block tables of all sequences: ids [num_groups, num_rows, width], -1 where there is no block.
struct BlockTablesView {
  const int32_t* ids;
  int64_t num_groups, num_rows, width;
};

class DecodeStep {
 public:
  DecodeStep(const StepLimits& limits, int64_t block_size, const FieldOffset& input,
             const FieldOffset& output);

  // Makes a StepInput that holds a step of `num_seqs` decodes the next one: its tokens are those
  // that `output` has sampled, and every position, length and slot grows by one. Right for
  // sequences that stay within their blocks.
  void advance(std::byte* input, const std::byte* output, int64_t step_id, int64_t num_seqs) const;

  // Writes the first `width` blocks of each sequence and the slot of its token. Sequence i has row
  // rows[i] of the tables. False if a token has no block; throws std::invalid_argument for sizes
  // and rows that are out of range.
  bool write_blocks(std::byte* input, const BlockTablesView& tables, const int64_t* rows,
                    int64_t num_seqs, int64_t width) const;

 private:
  void check(int64_t num_seqs) const;

  StepLimits limits_;
  int64_t block_size_;
  size_t header_, token_ids_, positions_, seq_lens_, row_position_, slot_mapping_, block_tables_,
      sampled_;
};

}  // namespace takt
