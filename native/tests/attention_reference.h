// Paged attention in double, on sequences of random numbers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/kv_reference.h"
#include "tests/random.h"

namespace takt::test {

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
        as_stored(shape.type, values->data() + at, shape.head_dim);
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
inline std::vector<float> partials(const Sequence& s, int64_t kv_head,
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
inline void combine(const float* parts, int64_t num_splits, int64_t head_dim, float* out) {
  const size_t partial = partial_floats(head_dim);
  std::vector<float> merged(parts, parts + partial);
  for (int64_t split = 1; split < num_splits; ++split) {
    attention_merge(parts + size_t(split) * partial, head_dim, merged.data());
  }
  attention_finish(merged.data(), head_dim, out);
}

// [positions, heads_per_kv, head_dim].
inline std::vector<float> attend(const Sequence& s, int64_t kv_head,
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
// each, twice. A cache of bf16 has weights rounded to 8 bits; its queries are rounded here too. One
// of int8 rounds a query to steps of its largest element over 16256, and weights times V likewise.
inline void check_row(const Sequence& s, int64_t kv_head, int64_t head, int32_t position,
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
          is_bf16 ? double(as_bf16(q[d] * a.scale)) : double(q[d]) * double(a.scale);
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

}  // namespace takt::test
