// Paged attention against double, and the equalities that batch invariance rests on.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/kv_reference.h"
#include "tests/random.h"

namespace takt {
namespace {

using test::Random;

struct Shape {
  int64_t head_dim;
  int64_t block_size;
  int64_t num_kv_heads;
  int64_t heads_per_kv;
  int64_t window;
  float softcap;
  KVType type;
  int64_t context;
};

// One sequence in a cache whose other bytes are all `garbage`, its blocks in random order.
class Sequence {
 public:
  Sequence(const Shape& shape, uint64_t seed, int garbage = 0xff) : shape(shape) {
    Random random(seed);
    const auto elements = size_t(shape.context * shape.num_kv_heads * shape.head_dim);
    k.resize(elements);
    v.resize(elements);
    for (float& x : k) x = random.between(-2.0f, 2.0f);
    for (float& x : v) x = random.between(-2.0f, 2.0f);
    q.resize(size_t(shape.context * shape.num_kv_heads * shape.heads_per_kv * shape.head_dim));
    for (float& x : q) x = random.between(-2.0f, 2.0f);
    const int64_t num_blocks = (shape.context + shape.block_size - 1) / shape.block_size;
    for (int64_t b = 0; b < num_blocks; ++b) table.push_back(int32_t(num_blocks - 1 - b));
    for (size_t b = table.size(); b > 1; --b) {
      std::swap(table[b - 1], table[size_t(random.below(int64_t(b)))]);
    }
    layer = {nullptr, nullptr, shape.type, shape.num_kv_heads, shape.block_size, shape.head_dim};
    k_cache.assign(layer.block_bytes() * table.size(), std::byte(garbage));
    v_cache = k_cache;
    layer.k = k_cache.data();
    layer.v = v_cache.data();
    for (int64_t p = 0; p < shape.context; ++p) write(p);
    for (std::vector<float>* values : {&k, &v}) {
      for (size_t at = 0; at < elements; at += size_t(shape.head_dim)) {
        test::as_stored(shape.type, values->data() + at, shape.head_dim);
      }
    }
  }

  void write(int64_t p) {
    const int64_t slot = table[size_t(p / shape.block_size)] * shape.block_size +
                         p % shape.block_size;
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      kv_store(layer, slot, h, key(p, h), value(p, h));
    }
  }

  const float* key(int64_t p, int64_t head) const { return &k[offset(p, head)]; }
  const float* value(int64_t p, int64_t head) const { return &v[offset(p, head)]; }
  const float* query(int64_t p, int64_t kv_head) const {
    return &q[offset(p, kv_head) * size_t(shape.heads_per_kv)];
  }

  AttentionArgs args() const {
    const float scale = 1.0f / std::sqrt(float(shape.head_dim));
    return {layer, table.data(), scale, shape.softcap, shape.window, shape.heads_per_kv};
  }

  Shape shape;
  KVLayer layer;
  std::vector<float> k, v, q;
  std::vector<int32_t> table;
  std::vector<std::byte> k_cache, v_cache;

 private:
  size_t offset(int64_t p, int64_t head) const {
    return size_t((p * shape.num_kv_heads + head) * shape.head_dim);
  }
};

// Partial results of rows at `positions` for one KV head, by one call for each split:
// [positions, heads_per_kv, splits, partial_floats].
std::vector<float> partials(const Sequence& s, int64_t kv_head,
                            const std::vector<int32_t>& positions) {
  const int64_t splits = (s.shape.context + kSplit - 1) / kSplit;
  const size_t partial = partial_floats(s.shape.head_dim);
  const auto heads = size_t(s.shape.heads_per_kv);
  std::vector<float> out(positions.size() * heads * size_t(splits) * partial);
  std::vector<float> one_split(positions.size() * heads * partial);
  std::vector<const float*> q;
  std::vector<float*> to;
  for (size_t i = 0; i < positions.size(); ++i) {
    q.push_back(s.query(positions[i], kv_head));
    to.push_back(&one_split[i * heads * partial]);
  }
  for (int64_t split = 0; split < splits; ++split) {
    const AttentionNext next{(kv_head + 1) % s.shape.num_kv_heads, (split + 1) % splits};
    attention_split(s.args(), kv_head, split, int(positions.size()), positions.data(), q.data(),
                    to.data(), next);
    for (size_t row = 0; row < positions.size() * heads; ++row) {
      std::memcpy(&out[(row * size_t(splits) + size_t(split)) * partial], &one_split[row * partial],
                  partial * 4);
    }
  }
  return out;
}

// Merges `num_splits` partial results that follow each other.
void combine(const float* parts, int64_t num_splits, int64_t head_dim, float* out) {
  const size_t partial = partial_floats(head_dim);
  std::vector<float> merged(parts, parts + partial);
  for (int64_t split = 1; split < num_splits; ++split) {
    attention_merge(parts + size_t(split) * partial, head_dim, merged.data());
  }
  attention_finish(merged.data(), head_dim, out);
}

// [positions, heads_per_kv, head_dim].
std::vector<float> attend(const Sequence& s, int64_t kv_head,
                          const std::vector<int32_t>& positions) {
  const std::vector<float> parts = partials(s, kv_head, positions);
  const int64_t splits = (s.shape.context + kSplit - 1) / kSplit;
  const size_t per_row = size_t(splits) * partial_floats(s.shape.head_dim);
  const size_t rows = positions.size() * size_t(s.shape.heads_per_kv);
  std::vector<float> out(rows * size_t(s.shape.head_dim));
  for (size_t row = 0; row < rows; ++row) {
    combine(&parts[row * per_row], splits, s.shape.head_dim, &out[row * size_t(s.shape.head_dim)]);
  }
  return out;
}

// Checks one row against double. With u = 2^-24, a score is off by at most
// e = (head_dim + 5) u sum |q k scale|, plus the softcap's cap * 2^-21 and rounding of s / cap; a
// weight then by 2 e + 2^-22 relative to the largest, and u for its scale; sums of n terms add n u
// each, twice. A cache of bf16 has weights rounded to 8 bits; its queries are rounded here too. One of
// int8 rounds a query to steps of its largest element over 16256, and weights times V likewise.
void check_row(const Sequence& s, int64_t kv_head, int64_t head, int32_t position,
               const float* got) {
  const AttentionArgs a = s.args();
  const bool is_bf16 = s.shape.type == KVType::kBF16, is_int8 = s.shape.type == KVType::kInt8;
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
  const auto d_count = size_t(s.shape.head_dim);
  const float* q = s.query(position, kv_head) + size_t(head) * d_count;
  std::vector<double> score;
  double score_error = 0.0, largest_q = 0.0, largest_v = 0.0;
  for (size_t d = 0; d < d_count; ++d) {
    largest_q = std::max(largest_q, std::abs(double(q[d]) * double(a.scale)));
  }
  for (int64_t p = first; p <= position; ++p) {
    double sum = 0.0, magnitude = 0.0, step = 0.0;
    for (size_t d = 0; d < d_count; ++d) {
      largest_v = std::max(largest_v, std::abs(double(s.value(p, kv_head)[d])));
      if (is_int8) step += std::abs(double(s.key(p, kv_head)[d])) * 0.5 * largest_q / 16256.0;
      const double scaled =
          is_bf16 ? double(test::as_bf16(q[d] * a.scale)) : double(q[d]) * double(a.scale);
      const double term = scaled * double(s.key(p, kv_head)[d]);
      sum += term;
      magnitude += std::abs(term);
    }
    double error = (double(d_count) + 5.0) * 0x1p-24 * magnitude + step;
    if (a.softcap != 0.0f) {
      error += std::abs(sum) * 0x1p-23 + double(a.softcap) * 0x1p-21;
      sum = double(a.softcap) * std::tanh(sum / double(a.softcap));
    }
    score.push_back(sum);
    score_error = std::max(score_error, error);
  }
  const double top = *std::max_element(score.begin(), score.end());
  double total = 0.0;
  for (double& x : score) total += x = std::exp(x - top);
  const double relative =
      (is_bf16 ? 0x1p-8 : 0.0) + 2.0 * (2.0 * score_error + 0x1p-22 + 0x1p-24) +
      2.0 * double(score.size() + 8) * 0x1p-24;
  // No V is more than 127 times its scale, which is at most 2^-7 above its row's largest over 127.
  const double step =
      is_int8 ? double(score.size()) * 0.5 / 16256.0 * largest_v * (1.0 + 0x1p-6) / total : 0.0;
  for (size_t d = 0; d < d_count; ++d) {
    double want = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < score.size(); ++i) {
      const double term = score[i] / total * double(s.value(first + int64_t(i), kv_head)[d]);
      want += term;
      magnitude += std::abs(term);
    }
    CHECK(std::abs(double(got[d]) - want) <= magnitude * relative + step,
          "position %d, element %zu: got %.9g, want %.9g, tolerance %.3g, head_dim %zu, "
          "block_size %d, %s",
          position, d, double(got[d]), want, magnitude * relative + step, d_count,
          int(s.shape.block_size), selected_isa());
  }
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> kShapes = {
      {64, 16, 3, 3, 0, 0.0f, KVType::kBF16, 600},    // SmolLM2
      {256, 16, 1, 4, 512, 0.0f, KVType::kBF16, 700},  // Gemma 3
      {128, 32, 2, 8, 0, 0.0f, KVType::kBF16, 530},
      {128, 64, 1, 16, 100, 50.0f, KVType::kBF16, 1100},
      {96, 16, 1, 5, 40, 0.0f, KVType::kBF16, 330},
      {80, 16, 2, 1, 0, 0.0f, KVType::kF32, 90},
      {16, 8, 1, 2, 0, 0.0f, KVType::kBF16, 40},
      {24, 8, 2, 5, 7, 20.0f, KVType::kF32, 530},
      {40, 24, 1, 7, 33, 0.0f, KVType::kBF16, 77},
      {72, 56, 2, 9, 0, 0.0f, KVType::kBF16, 65},
      {256, 8, 1, 2, 3, 0.0f, KVType::kF32, 20},
      {32, 48, 1, 12, 0, 30.0f, KVType::kF32, 100},
      {64, 16, 3, 3, 0, 0.0f, KVType::kFP8E4M3, 600},
      {256, 16, 1, 4, 512, 0.0f, KVType::kFP8E4M3, 700},
      {40, 24, 2, 7, 33, 20.0f, KVType::kFP8E4M3, 77},
      {24, 8, 2, 1, 0, 0.0f, KVType::kFP8E4M3, 300},
      {64, 16, 3, 3, 0, 0.0f, KVType::kInt8, 600},
      {128, 64, 1, 16, 100, 50.0f, KVType::kInt8, 1100},
      {72, 56, 2, 9, 0, 0.0f, KVType::kInt8, 65},
      {16, 8, 1, 2, 7, 0.0f, KVType::kInt8, 530},
      {256, 16, 1, 4, 512, 0.0f, KVType::kInt8, 700},
      {96, 16, 1, 5, 40, 0.0f, KVType::kInt8, 330},
  };
  return kShapes;
}

std::vector<int32_t> interesting_positions(const Shape& shape) {
  std::vector<int32_t> out;
  for (int64_t p : {int64_t(0), int64_t(1), int64_t(7), int64_t(8), int64_t(15), int64_t(16),
                    int64_t(17), shape.window - 1, shape.window, shape.window + 1, kSplit - 1,
                    kSplit, kSplit + 1, shape.context - 2, shape.context - 1}) {
    if (p >= 0 && p < shape.context) out.push_back(int32_t(p));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void test_agrees_with_double_and_between_instruction_sets() {
  for (const Shape& shape : shapes()) {
    const Sequence s(shape, 7);
    const auto positions = interesting_positions(shape);
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      std::vector<float> first;
      for (const char* isa : available_isas()) {
        select_isa(isa);
        const auto out = attend(s, kv_head, positions);
        if (first.empty()) first = out;
        CHECK(std::memcmp(first.data(), out.data(), out.size() * 4) == 0, "%s differs", isa);
      }
      for (size_t i = 0; i < positions.size(); ++i) {
        for (int64_t h = 0; h < shape.heads_per_kv; ++h) {
          const size_t row = i * size_t(shape.heads_per_kv) + size_t(h);
          check_row(s, kv_head, h, positions[i], &first[row * size_t(shape.head_dim)]);
        }
      }
    }
  }
  select_isa(nullptr);
}

// A row has the same bits alone, in a full prefill, and in any cut of the rows.
void test_rows_do_not_depend_on_their_batch() {
  Random random(11);
  for (const char* isa : available_isas()) {
    select_isa(isa);
    for (const Shape& shape : shapes()) {
      const Sequence s(shape, 8);
      const int64_t first = std::max<int64_t>(0, shape.context - (kIsSanitized ? 20 : 45));
      std::vector<int32_t> all;
      for (int64_t p = first; p < shape.context; ++p) all.push_back(int32_t(p));
      const auto whole = partials(s, 0, all);
      const size_t per_row = whole.size() / all.size();
      for (size_t begin = 0; begin < all.size();) {
        const size_t left = all.size() - begin;
        const size_t count = random.below(2) ? 1 : size_t(random.below(int64_t(left))) + 1;
        const std::vector<int32_t> some(all.begin() + int64_t(begin),
                                        all.begin() + int64_t(begin + count));
        const auto out = partials(s, 0, some);
        CHECK(std::memcmp(out.data(), &whole[begin * per_row], out.size() * 4) == 0,
              "%s: rows %zu to %zu of head_dim %d", isa, begin, begin + count,
              int(shape.head_dim));
        begin += count;
      }
    }
  }
  select_isa(nullptr);
}

// What was never written, or lies after the row, is not part of the result.
void test_reads_nothing_but_its_context() {
  for (const char* isa : available_isas()) {
    select_isa(isa);
    for (Shape shape : shapes()) {
      const Sequence nan(shape, 9, 0xff);
      const Sequence other(shape, 9, 0x3c);
      const auto last = int32_t(shape.context - 1);
      const auto out = attend(nan, 0, {last});
      CHECK(out == attend(other, 0, {last}), "%s", isa);
      Sequence shorter = nan;  // the last positions hold other numbers
      const int32_t position = last - 3;
      for (int64_t p = position + 1; p < shape.context; ++p) {
        for (int64_t d = 0; d < shape.num_kv_heads * shape.head_dim; ++d) {
          const size_t at = size_t(p * shape.num_kv_heads * shape.head_dim + d);
          shorter.k[at] = shorter.v[at] = std::numeric_limits<float>::infinity();
        }
        shorter.layer.k = shorter.k_cache.data();
        shorter.layer.v = shorter.v_cache.data();
        shorter.write(p);
      }
      CHECK(attend(shorter, 0, {position}) == attend(nan, 0, {position}), "%s", isa);
    }
  }
  select_isa(nullptr);
}

// Blocks that the window has passed may be gone from the table, and their splits left out.
void test_passed_blocks_are_not_looked_up() {
  for (const Shape& shape : shapes()) {
    if (shape.window == 0) continue;
    Sequence s(shape, 10);
    const auto position = int32_t(shape.context - 1);
    const auto want = attend(s, 0, {position});
    for (size_t b = 0; b < s.table.size(); ++b) {
      const int64_t end = int64_t(b + 1) * shape.block_size;
      if (end <= position - shape.window + 1) s.table[b] = -1000000;
    }
    for (const char* isa : available_isas()) {
      select_isa(isa);
      CHECK(attend(s, 0, {position}) == want, "%s", isa);
    }
    select_isa(nullptr);
  }
}

void test_unseen_splits() {
  const Shape shape = {64, 16, 1, 1, 20, 0.0f, KVType::kBF16, 1600};
  const Sequence s(shape, 12);
  const auto parts = partials(s, 0, {1050});  // it sees 1031 to 1050, all in split 4
  static_assert(1031 / kSplit == 4 && 1050 / kSplit == 4);
  const size_t partial = partial_floats(64);
  const int64_t splits = 1600 / kSplit + 1;
  for (size_t split : {0, 1, 3, 5}) {
    CHECK(parts[split * partial] == -std::numeric_limits<float>::infinity());
    for (size_t i = 1; i < partial; ++i) CHECK(parts[split * partial + i] == 0.0f);
  }
  std::vector<float> all(64), one(64), none(64, 1.0f);
  combine(parts.data(), splits, 64, all.data());
  combine(parts.data() + 4 * partial, 1, 64, one.data());
  CHECK(all == one);
  combine(parts.data(), 2, 64, none.data());
  CHECK(none == std::vector<float>(64, 0.0f));
}

// Two splits, the second of negligible sum: the result is e^x of the difference of their maxima.
void test_exponential() {
  const int64_t head_dim = 8;
  const auto stride = int64_t(partial_floats(head_dim));
  std::vector<float> parts(size_t(2 * stride), 0.0f);
  parts[1] = 1.0f;
  std::fill(parts.begin() + stride + 1, parts.end(), 1.0f);
  parts[size_t(stride) + 1] = 0x1p-100f;
  float out[head_dim];
  for (const char* isa : available_isas()) {
    select_isa(isa);
    for (float x = -87.3f; x < 0.0f; x += kIsSanitized ? 0.171f : 0.00171f) {
      parts[size_t(stride)] = x;
      combine(parts.data(), 2, head_dim, out);
      const double want = std::exp(double(x));
      CHECK(std::abs(double(out[7]) - want) <= want * 0x1p-23, "%s: e^%.9g = %.9g", isa, double(x),
            double(out[7]));
    }
    for (const float x : {-88.0f, -1000.0f, -3e38f}) {
      parts[size_t(stride)] = x;
      combine(parts.data(), 2, head_dim, out);
      CHECK(out[0] == 0.0f, "%s: e^%.9g = %.9g", isa, double(x), double(out[0]));
    }
    parts[size_t(stride)] = 0.0f;
    combine(parts.data(), 2, head_dim, out);
    CHECK(out[0] == 1.0f, "%s", isa);
  }
  select_isa(nullptr);
}

}  // namespace
}  // namespace takt

int main() {
  takt::test_agrees_with_double_and_between_instruction_sets();
  takt::test_rows_do_not_depend_on_their_batch();
  takt::test_reads_nothing_but_its_context();
  takt::test_passed_blocks_are_not_looked_up();
  takt::test_unseen_splits();
  takt::test_exponential();
}
