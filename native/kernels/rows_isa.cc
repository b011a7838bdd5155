// Element-wise and normalising kernels on one row.
#include <cstdint>

#include "kernels/exp.h"
#include "kernels/vec16.h"
#include "kernels/rows_kernels.h"

namespace takt::TAKT_ISA {
namespace {

// Element i goes to lane i % 16 of partial sum (i / 16) % 4, in the order of i; then
// (0 + 1) + (2 + 3) and the lanes. Four sums hide the latency of the addition. `load_at(i, count)`
// gives the elements from i on.
template <class LoadAt>
TAKT_VEC_INLINE float sum_of_squares(int64_t n, LoadAt load_at) {
  Vec16 sum[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const Vec16 v = load_at(i + s * kLanes, kLanes);
      sum[s] = fma(v, v, sum[s]);
    }
  }
  for (int s = 0; i < n; ++s, i += kLanes) {
    const Vec16 v = load_at(i, n - i < kLanes ? int(n - i) : kLanes);
    sum[s] = fma(v, v, sum[s]);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

TAKT_VEC_INLINE void normalise(const float* x, float squares, const float* weight, float eps,
                               int64_t n, float* out) {
  const float mean = squares / float(n);
  const Vec16 inverse_rms = set1(1.0f / __builtin_sqrtf(mean + eps));
  for_each_vector(n, [&](int64_t i, int count) {
    const Vec16 normalised = load_some(x + i, count) * inverse_rms;
    store_some(out + i, normalised * load_some(weight + i, count), count);
  });
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float squares =
      sum_of_squares(n, [&](int64_t i, int count) { return load_some(x + i, count); });
  normalise(x, squares, weight, eps, n, out);
}

void add_rms_norm(const float* a, const float* b, const float* weight, float eps, int64_t n,
                  float* sum, float* out) {
  const float squares = sum_of_squares(n, [&](int64_t i, int count) {
    // Of the next row, which most likely follows.
    __builtin_prefetch(a + i + n);
    __builtin_prefetch(b + i + n);
    __builtin_prefetch(sum + i + n, 1);
    const Vec16 v = load_some(a + i, count) + load_some(b + i, count);
    store_some(sum + i, v, count);
    return v;
  });
  normalise(sum, squares, weight, eps, n, out);
}

void add(const float* a, const float* b, int64_t n, float* out) {
  for_each_vector(n, [&](int64_t i, int count) {
    store_some(out + i, load_some(a + i, count) + load_some(b + i, count), count);
  });
}

void rope(const float* heads, int64_t num_heads, int64_t head_dim, const float* cos,
          const float* sin, float* out) {
  const int64_t half = head_dim / 2;
  for_each_vector(half, [&](int64_t i, int count) {
    const Vec16 c = load_some(cos + i, count);
    const Vec16 s = load_some(sin + i, count);
    for (int64_t at = i; at < num_heads * head_dim; at += head_dim) {
      const Vec16 x = load_some(heads + at, count);
      const Vec16 y = load_some(heads + at + half, count);
      store_some(out + at, x * c - y * s, count);
      store_some(out + at + half, y * c + x * s, count);
    }
  });
}

void gate(Gate kind, const float* gate, const float* up, int64_t n, float* out) {
  if (kind == Gate::kSilu) {
    for_each_vector(n, [&](int64_t i, int count) {
      store_some(out + i, silu(load_some(gate + i, count)) * load_some(up + i, count), count);
    });
  } else {
    for_each_vector(n, [&](int64_t i, int count) {
      store_some(out + i, gelu_tanh(load_some(gate + i, count)) * load_some(up + i, count), count);
    });
  }
}

void softcap(const float* x, float cap, int64_t n, float* out) {
  const Vec16 c = set1(cap);
  for_each_vector(n, [&](int64_t i, int count) {
    store_some(out + i, c * tanh(load_some(x + i, count) / c), count);
  });
}

}  // namespace

const RowsKernels kRowsKernels = {&rms_norm, &add_rms_norm, &add, &rope, &gate, &softcap};

}  // namespace takt::TAKT_ISA
