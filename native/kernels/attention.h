// Normalisation, rotary embedding and paged attention. Pure functions on rows.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kv.h"

namespace takt {

// out[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i]; the sum of squares is taken in a fixed order.
// n is any positive number; out may be x. In exact arithmetic's place: relative error below
// (n / 64 + 16) * 2^-24, all terms of the sum being positive.
void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* out);

// sum[i] = a[i] + b[i], and its norm as rms_norm_row's.
void add_rms_norm_row(const float* a, const float* b, const float* weight, float eps, int64_t n,
                      float* sum, float* out);

// out[i] = a[i] + b[i].
void add_row(const float* a, const float* b, int64_t n, float* out);

// Rotates the halves of each head: (x, y) -> (x cos - y sin, y cos + x sin); out may be heads.
// heads, out: [num_heads, head_dim]; cos, sin: [head_dim / 2].
void rope_heads(const float* heads, int64_t num_heads, int64_t head_dim, const float* cos,
                const float* sin, float* out);

enum class Gate { kSilu, kGeluTanh };
// out[i] = act(gate[i]) * up[i]; out may be gate or up. The relative error of act(x) is below
// (3 + |x| / 2) * 2^-23 (silu) and (4 + 8 |u|) * 2^-23 (gelu: u is what tanh is taken of); where
// act(x) is closer to 0 than 2^-116 it may be -0.
void gate_row(Gate kind, const float* gate, const float* up, int64_t n, float* out);

// out[i] = cap * tanh(x[i] / cap), within cap * 2^-21; out may be x.
void softcap_row(const float* x, float cap, int64_t n, float* out);

// Context is cut at absolute positions that are multiples of kSplit; a row's result is the ordered
// merge of its splits, whoever computed them, so it does not depend on the number of threads.
inline constexpr int64_t kSplit = 256;

struct AttentionArgs {
  KVLayer kv;
  const int32_t* block_table;  // of the sequence and KV group; -1 where the window has passed
  float scale;
  float softcap;   // 0: off
  int64_t window;  // positions a token sees, itself included; 0: all
  int64_t num_heads_per_kv;
};

// A partial result of one (row, query head) over one split or some merged ones: max, sum of exp,
// weighted V [head_dim].
inline constexpr size_t partial_floats(int64_t head_dim) { return size_t(2 + head_dim); }

// What the same rows will be asked for next: its first K and V may be fetched meanwhile.
struct AttentionNext {
  int64_t kv_head = -1;  // -1: nobody knows
  int64_t split = 0;
};

// For `m` rows of one sequence at `positions[i]`, and the query heads of one KV head:
// q[i] points to [num_heads_per_kv, head_dim]; out[i] to [num_heads_per_kv, partial_floats].
// Covers positions of [split * kSplit, (split + 1) * kSplit) that each row may see; a row that sees
// none of them gets max = -inf, sum = 0.
void attention_split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                     const int32_t* positions, const float* const* q, float* const* out,
                     AttentionNext next = {});

// Merges the partial result of the next split into that of those before it. A split that the row
// sees nothing of changes no bit, and merging into nothing copies.
void attention_merge(const float* next, int64_t head_dim, float* merged);

// Weighted V / sum of exp [head_dim]; 0 if the row saw nothing.
void attention_finish(const float* merged, int64_t head_dim, float* out);

}  // namespace takt
