// Paged attention against double, and the equalities that batch invariance rests on.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "tests/attention_reference.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt {
namespace {

using namespace test;

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
      {40, 24, 1, 7, 33, 20.0f, KVType::kInt8, 77},
      {24, 8, 2, 5, 7, 0.0f, KVType::kInt8, 530},
      {80, 16, 2, 9, 0, 0.0f, KVType::kInt8, 90},
      {32, 48, 1, 12, 0, 30.0f, KVType::kInt8, 100},
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

void test_unseen_splits(KVType type, int64_t heads) {
  const Shape shape = {64, 16, 1, heads, 20, 0.0f, type, 1600};
  const Sequence s(shape, 12);
  const auto parts = partials(s, 0, {1050});  // it sees 1031 to 1050, all in split 4
  static_assert(1031 / kSplit == 4 && 1050 / kSplit == 4);
  const size_t partial = partial_floats(64);
  const int64_t splits = 1600 / kSplit + 1;
  for (int64_t head = 0; head < heads; ++head) {
    const float* own = parts.data() + size_t(head * splits) * partial;
    for (size_t split : {0, 1, 3, 5}) {
      CHECK(own[split * partial] == -std::numeric_limits<float>::infinity());
      for (size_t i = 1; i < partial; ++i) CHECK(own[split * partial + i] == 0.0f);
    }
    std::vector<float> all(64), one(64), none(64, 1.0f);
    combine(own, splits, 64, all.data());
    combine(own + 4 * partial, 1, 64, one.data());
    CHECK(all == one);
    combine(own, 2, 64, none.data());
    CHECK(none == std::vector<float>(64, 0.0f));
  }
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
  for (const auto type : {takt::KVType::kBF16, takt::KVType::kInt8, takt::KVType::kFP8E4M3}) {
    takt::test_unseen_splits(type, 1);
    takt::test_unseen_splits(type, 9);
  }
  takt::test_exponential();
}
