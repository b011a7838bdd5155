// A small random decoder and the buffers of its steps, for tests of programs.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/builder.h"
#include "program/program.h"
#include "tests/random.h"

namespace takt::test {

// A StepInput or StepOutput with fields at offsets of our own.
class StepBuffer {
 public:
  // (name, bytes) of each field.
  explicit StepBuffer(const std::vector<std::pair<std::string, int64_t>>& fields) {
    size_t at = 0;
    for (const auto& [name, bytes] : fields) {
      offsets_[name] = at;
      at += align64(size_t(bytes));
    }
    memory_.resize(at / 8 + 1);
  }
  FieldOffset offset() const {
    return [offsets = offsets_](const std::string& name) { return offsets.at(name); };
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(memory_.data()); }
  template <class T>
  T* at(const std::string& name) {
    return reinterpret_cast<T*>(data() + offsets_.at(name));
  }

 private:
  std::map<std::string, size_t> offsets_;
  std::vector<uint64_t> memory_;
};

inline StepBuffer input_buffer(const StepLimits& l) {
  const int64_t rows = l.max_num_rows * 4, tokens = l.max_num_tokens * 4;
  return StepBuffer({{"header", 64}, {"token_ids", tokens}, {"positions", tokens},
                     {"query_start", 4 * (l.max_num_seqs + 1)}, {"seq_lens", 4 * l.max_num_seqs},
                     {"slot_mapping", 2 * tokens * l.num_kv_groups},
                     {"block_tables", 4 * l.num_kv_groups * l.max_num_seqs * l.max_blocks_per_seq},
                     {"block_copies", 12 * l.max_num_block_copies}, {"row_tokens", rows},
                     {"row_targets", rows}, {"row_num_logprobs", rows}, {"row_temperature", rows},
                     {"row_top_k", rows}, {"row_top_p", rows}, {"row_min_p", rows},
                     {"row_repetition_penalty", rows}, {"row_presence_penalty", rows},
                     {"row_frequency_penalty", rows}, {"row_seed", 2 * rows}, {"row_choice", rows},
                     {"row_position", rows}, {"history_start", rows + 4},
                     {"history_token", 4 * l.max_num_history},
                     {"history_count", 4 * l.max_num_history}, {"bias_start", rows + 4},
                     {"bias_token", 4 * l.max_num_biases}, {"bias_value", 4 * l.max_num_biases}});
}

inline StepBuffer output_buffer(const StepLimits& l) {
  const int64_t rows = l.max_num_rows * 4;
  return StepBuffer({{"header", 64}, {"token_ids", rows}, {"logprobs", rows}, {"ranks", rows},
                     {"top_token_ids", rows * l.max_logprobs},
                     {"top_logprobs", rows * l.max_logprobs}});
}

// Two KV groups: layers 0 and 2 see all of the context, layer 1 a window of 20.
class TinyModel {
 public:
  static constexpr int64_t kVocab = 160, kHidden = 64, kHeads = 4, kKVHeads = 2, kHeadDim = 16;
  static constexpr int64_t kInner = 96, kBlockSize = 16, kMaxPosition = 1280, kWindow = 20;
  static constexpr int kLayers = 3, kMaxSeqs = 6;
  static constexpr StepLimits kLimits{.max_num_tokens = 96,
                                      .max_num_seqs = kMaxSeqs,
                                      .max_num_rows = 40,
                                      .max_blocks_per_seq = kMaxPosition / kBlockSize,
                                      .num_kv_groups = 2,
                                      .max_num_block_copies = 4,
                                      .max_num_history = 16,
                                      .max_num_biases = 16,
                                      .max_logprobs = 2};

  explicit TinyModel(int num_threads)
      : input(input_buffer(kLimits)),
        output(output_buffer(kLimits)),
        pool(std::make_shared<Pool>(num_threads)),
        kv(std::make_shared<KVPool>(std::vector<int>{0, 1, 0},
                                    std::vector<int64_t>(2, kMaxSeqs * kLimits.max_blocks_per_seq),
                                    kKVHeads, kHeadDim, kBlockSize, KVType::kF32)) {
    ProgramBuilder b(kLimits, kMaxPosition, num_threads, kv);
    build(b);
    program = std::make_unique<Program>(pool, b.finish(input.offset()), output.offset());
  }

  struct Chunk {
    int seq;
    int first;  // position of its first token
    std::vector<int32_t> tokens;
  };

  // Scores every row's next token under all of the step's chunks: returns logprobs of the two best
  // tokens of each token's row, as they come.
  std::vector<float> step(std::span<const Chunk> chunks);

  void fill(std::span<const Chunk> chunks);
  std::vector<float> read_rows();

  StepBuffer input, output;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<KVPool> kv;
  std::unique_ptr<Program> program;

 private:
  SharedWeight weight(int64_t rows, int64_t cols);
  SharedVector vector(int64_t width, float low, float high);
  void build(ProgramBuilder& b);

  Random random_{5};
  int64_t num_steps_ = 0;
};

inline SharedWeight TinyModel::weight(int64_t rows, int64_t cols) {
  std::vector<float> values(size_t(rows * cols));
  for (float& v : values) v = random_.between(-0.3f, 0.3f);
  const RawMatrix raw{reinterpret_cast<const std::byte*>(values.data()), QuantType::kF32, rows,
                      cols};
  return pack_weight({&raw, 1}, nullptr, 1);
}

inline SharedVector TinyModel::vector(int64_t width, float low, float high) {
  auto values = std::make_shared<FloatVector>(size_t(width));
  for (float& v : *values) v = random_.between(low, high);
  return values;
}

inline void TinyModel::build(ProgramBuilder& b) {
  const auto table = weight(kVocab, kHidden);
  const auto cos = vector(kMaxPosition * kHeadDim / 2, -1, 1);
  const auto sin = vector(kMaxPosition * kHeadDim / 2, -1, 1);
  int x = b.embed(table, 2.0f), residual = kNoValue;
  SharedVector post;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::tie(x, residual) = b.norm(x, vector(kHidden, 0.5, 1.5), 1e-5f, residual, post);
    x = b.linear(x, weight((kHeads + 2 * kKVHeads) * kHeadDim, kHidden));
    const auto norm = layer == 2 ? vector(kHeadDim, 0.5, 1.5) : nullptr;
    x = b.rope_cache({x, kHeads, cos, sin, norm, norm, 1e-5f, layer});
    x = b.attention(x, {kHeads, 0.25f, 0.0f, layer == 1 ? kWindow : 0, layer});
    x = b.linear(x, weight(kHidden, kHeads * kHeadDim));
    post = layer == 1 ? vector(kHidden, 0.5, 1.5) : nullptr;
    std::tie(x, residual) = b.norm(x, vector(kHidden, 0.5, 1.5), 1e-5f, residual, post);
    x = b.gated_mlp(x, weight(2 * kInner, kHidden), weight(kHidden, kInner), Gate::kSilu);
  }
  std::tie(x, residual) = b.norm(x, vector(kHidden, 0.5, 1.5), 1e-5f, residual, post);
  b.sample(b.logits(x, table, 0.0f));
}

inline void TinyModel::fill(std::span<const Chunk> chunks) {
  int32_t token = 0, seq = 0;
  const int64_t blocks = kLimits.max_blocks_per_seq;
  input.at<int32_t>("query_start")[0] = 0;
  for (const Chunk& chunk : chunks) {
    const int32_t end = chunk.first + int32_t(chunk.tokens.size());
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t group = 0; group < 2; ++group) {
        input.at<int32_t>("block_tables")[(group * kMaxSeqs + seq) * blocks + b] =
            b * kBlockSize < end ? int32_t(b * kMaxSeqs + chunk.seq) : -1;
      }
    }
    for (int32_t p = chunk.first; p < end; ++p, ++token) {
      input.at<int32_t>("token_ids")[token] = chunk.tokens[size_t(p - chunk.first)];
      input.at<int32_t>("positions")[token] = p;
      const int64_t block = p / kBlockSize * kMaxSeqs + chunk.seq;
      for (int64_t group = 0; group < 2; ++group) {
        input.at<int64_t>("slot_mapping")[group * kLimits.max_num_tokens + token] =
            block * kBlockSize + p % kBlockSize;
      }
    }
    input.at<int32_t>("seq_lens")[seq] = end;
    input.at<int32_t>("query_start")[++seq] = token;
  }
  // Rows: the last tokens of the step, as many as there is room for.
  const int32_t rows = std::min<int32_t>(token, int32_t(kLimits.max_num_rows));
  for (int32_t row = 0; row < rows; ++row) {
    input.at<int32_t>("row_tokens")[row] = token - rows + row;
    input.at<int32_t>("row_targets")[row] = -1;
    input.at<int32_t>("row_num_logprobs")[row] = 2;
    input.at<float>("row_top_p")[row] = 1.0f;
    input.at<float>("row_repetition_penalty")[row] = 1.0f;
  }
  const int64_t header[8] = {++num_steps_, token, seq, rows};
  std::memcpy(input.at<int64_t>("header"), header, sizeof header);
}

inline std::vector<float> TinyModel::read_rows() {
  const int64_t rows = output.at<int64_t>("header")[3];
  const float* top = output.at<float>("top_logprobs");
  return {top, top + rows * kLimits.max_logprobs};
}

inline std::vector<float> TinyModel::step(std::span<const Chunk> chunks) {
  fill(chunks);
  program->run(input.data(), output.data());
  return read_rows();
}

}  // namespace takt::test
