// Normalisation, rotary embedding, KV cache writes and paged attention. Pure functions on rows.
#pragma once
#include <cstddef>
#include <cstdint>

namespace takt {

// out[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i]; the sum of squares is taken in a fixed order.
// n is any positive number; out may be x. In exact arithmetic's place: relative error below
// (n / 64 + 16) * 2^-24, all terms of the sum being positive.
void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* out);

// out[i] = a[i] + b[i].
void add_row(const float* a, const float* b, int64_t n, float* out);

// Rotates the halves of one head in place: (x, y) -> (x cos - y sin, y cos + x sin).
void rope_head(float* head, int64_t head_dim, const float* cos, const float* sin);

enum class Gate { kSilu, kGeluTanh };
// out[i] = act(gate[i]) * up[i]; out may be gate or up. The relative error of act(x) is below
// (3 + |x| / 2) * 2^-23 (silu) and (4 + 8 |u|) * 2^-23 (gelu: u is what tanh is taken of); where
// act(x) is closer to 0 than 2^-116 it may be -0.
void gate_row(Gate kind, const float* gate, const float* up, int64_t n, float* out);

enum class KVType : uint8_t { kBF16, kF32 };

// out[i] = cap * tanh(x[i] / cap), within cap * 2^-21; out may be x.
void softcap_row(const float* x, float cap, int64_t n, float* out);

// One layer's K and V, each [num_blocks, num_kv_heads, block_size, head_dim]. The order of elements
// inside a (block, head) piece is the kernels' own business.
struct KVLayer {
  std::byte* k;
  std::byte* v;
  KVType type;
  int64_t num_kv_heads;
  int64_t block_size;
  int64_t head_dim;

  size_t piece_bytes() const {
    return size_t(block_size * head_dim) * (type == KVType::kBF16 ? 2 : 4);
  }
  size_t block_bytes() const { return piece_bytes() * size_t(num_kv_heads); }
};

// Largest head_dim; it is a multiple of 8. block_size is a multiple of 8 too.
inline constexpr int64_t kMaxHeadDim = 256;

// Writes one token's k and v (each [head_dim]) of one head into a slot. Idempotent: may be done by
// two threads at once with equal values (stores are relaxed atomics where a sanitizer watches).
void kv_store(const KVLayer& kv, int64_t slot, int64_t kv_head, const float* k, const float* v);

// Context is cut at absolute positions that are multiples of kSplit; a row's result is the ordered
// combination of its splits, whoever computed them, so it does not depend on the number of threads.
inline constexpr int64_t kSplit = 512;

struct AttentionArgs {
  KVLayer kv;
  const int32_t* block_table;  // of the sequence and KV group; -1 where the window has passed
  float scale;
  float softcap;   // 0: off
  int64_t window;  // positions a token sees, itself included; 0: all
  int64_t num_heads_per_kv;
};

// A partial result of one (row, query head) over one split: max, sum of exp, weighted V [head_dim].
inline constexpr size_t partial_floats(int64_t head_dim) { return size_t(2 + head_dim); }

// For `m` rows of one sequence at `positions[i]`, and the query heads of one KV head:
// q[i] points to [num_heads_per_kv, head_dim]; out[i] to [num_heads_per_kv, partial_floats].
// Covers positions of [split * kSplit, (split + 1) * kSplit) that each row may see; a row that sees
// none of them gets max = -inf, sum = 0.
void attention_split(const AttentionArgs& a, int64_t kv_head, int64_t split, int m,
                     const int32_t* positions, const float* const* q, float* const* out);

// Combines `num_splits` partials (consecutive, `stride` floats apart) of one (row, head) in order.
// Splits that the row sees nothing of change no bit; if there is no other, the result is 0.
void attention_combine(const float* partials, int64_t num_splits, int64_t stride, int64_t head_dim,
                       float* out);

}  // namespace takt
