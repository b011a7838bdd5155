// A step of decodes that is advanced has what a step that is filled from the start would have.
#include <stdexcept>
#include <vector>

#include "program/decode_step.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/tiny_model.h"

namespace takt::test {
namespace {

constexpr int64_t kBlockSize = 4;
constexpr StepLimits kLimits = {.max_num_tokens = 9,
                                .max_num_seqs = 7,
                                .max_num_rows = 8,
                                .max_blocks_per_seq = 6,
                                .num_kv_groups = 2,
                                .max_num_block_copies = 1,
                                .max_num_history = 1,
                                .max_num_biases = 1,
                                .max_logprobs = 0};
constexpr int64_t kRows = 10, kWidth = 8;

struct Sequences {
  std::vector<int32_t> positions;
  std::vector<int64_t> rows;
  std::vector<int32_t> ids;  // [num_groups, kRows, kWidth]

  BlockTablesView tables() const { return {ids.data(), kLimits.num_kv_groups, kRows, kWidth}; }
  int32_t block(int64_t group, size_t seq, int64_t index) const {
    return ids[size_t((group * kRows + rows[seq]) * kWidth + index)];
  }
};

Sequences random_sequences(Random& random, int num_seqs) {
  Sequences s;
  for (int64_t i = 0; i < kLimits.num_kv_groups * kRows * kWidth; ++i) {
    s.ids.push_back(int32_t(random.below(1000)));
  }
  for (int i = 0; i < num_seqs; ++i) {
    s.positions.push_back(int32_t(random.below(int(kBlockSize * 5))));
    s.rows.push_back(int64_t((i * 3 + 1) % kRows));
  }
  return s;
}

void write(StepBuffer& input, const Sequences& s) {
  for (size_t i = 0; i < s.positions.size(); ++i) {
    input.at<int32_t>("positions")[i] = s.positions[i];
    input.at<int32_t>("seq_lens")[i] = s.positions[i] + 1;
    input.at<uint32_t>("row_position")[i] = uint32_t(s.positions[i] + 1);
  }
}

void check_step(StepBuffer& input, const Sequences& s, int64_t width) {
  for (size_t i = 0; i < s.positions.size(); ++i) {
    const int32_t position = s.positions[i];
    CHECK(input.at<int32_t>("positions")[i] == position);
    CHECK(input.at<int32_t>("seq_lens")[i] == position + 1);
    CHECK(input.at<uint32_t>("row_position")[i] == uint32_t(position + 1));
    for (int64_t g = 0; g < kLimits.num_kv_groups; ++g) {
      const int64_t slot =
          input.at<int64_t>("slot_mapping")[size_t(g * kLimits.max_num_tokens) + i];
      CHECK(slot == s.block(g, i, position / kBlockSize) * kBlockSize + position % kBlockSize,
            "group %d, sequence %d", int(g), int(i));
      const int32_t* table = input.at<int32_t>("block_tables") +
                             (g * kLimits.max_num_seqs + int64_t(i)) * kLimits.max_blocks_per_seq;
      for (int64_t b = 0; b < width; ++b) CHECK(table[b] == s.block(g, i, b));
      for (int64_t b = width; b < kLimits.max_blocks_per_seq; ++b) CHECK(table[b] == 0);
    }
  }
}

void steps_follow_each_other() {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const int num_seqs = 1 + int(random.below(int(kLimits.max_num_seqs)));
    Sequences s = random_sequences(random, num_seqs);
    StepBuffer input = input_buffer(kLimits), output = output_buffer(kLimits);
    const DecodeStep step(kLimits, kBlockSize, input.offset(), output.offset());
    write(input, s);
    const int64_t width = 6;
    CHECK(step.write_blocks(input.data(), s.tables(), s.rows.data(), num_seqs, width));
    check_step(input, s, width);
    for (int number = 1; number < 4; ++number) {
      bool crosses = false;
      for (int i = 0; i < num_seqs; ++i) {
        output.at<int32_t>("token_ids")[i] = int32_t(random.below(500));
        const int32_t position = ++s.positions[size_t(i)];
        crosses = crosses || position % kBlockSize == 0;
      }
      step.advance(input.data(), output.data(), number, num_seqs);
      CHECK(input.at<int64_t>("header")[0] == number);
      if (crosses) {
        CHECK(step.write_blocks(input.data(), s.tables(), s.rows.data(), num_seqs, width));
      }
      check_step(input, s, width);
      for (int i = 0; i < num_seqs; ++i) {
        CHECK(input.at<int32_t>("token_ids")[i] == output.at<int32_t>("token_ids")[i]);
      }
    }
    for (int i = num_seqs; i < int(kLimits.max_num_seqs); ++i) {
      CHECK(input.at<int32_t>("positions")[i] == 0, "a sequence too many was written");
    }
  }
}

template <class Call>
bool throws(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void what_does_not_fit_is_refused() {
  Random random(5);
  Sequences s = random_sequences(random, 2);
  StepBuffer input = input_buffer(kLimits), output = output_buffer(kLimits);
  const DecodeStep step(kLimits, kBlockSize, input.offset(), output.offset());
  s.positions = {5, 3};
  write(input, s);
  const auto blocks = [&](int64_t width) {
    return step.write_blocks(input.data(), s.tables(), s.rows.data(), 2, width);
  };
  CHECK(blocks(2));
  CHECK(throws([&] { blocks(1); }));  // position 5 is in the second block
  CHECK(throws([&] { blocks(kLimits.max_blocks_per_seq + 1); }));
  CHECK(throws([&] { step.advance(input.data(), output.data(), 1, kLimits.max_num_seqs + 1); }));
  s.ids[size_t(s.rows[0] * kWidth + 1)] = -1;
  CHECK(!blocks(2));  // the block is not there
  s.rows[1] = kRows;
  CHECK(throws([&] { blocks(2); }));
}

}  // namespace
}  // namespace takt::test

int main() {
  takt::test::steps_follow_each_other();
  takt::test::what_does_not_fit_is_refused();
}
