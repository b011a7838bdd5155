// Element-wise and normalising kernels on one row.
#include <cstdint>

#include "kernels/exp.h"
#include "kernels/vec16.h"
#include "kernels/rows_kernels.h"

namespace takt::TAKT_ISA {
namespace {

// Element i goes to lane i % 16 of partial sum (i / 16) % 4, in the order of i; then
// (0 + 1) + (2 + 3) and the lanes. Four sums hide the latency of the addition.
float sum_of_squares(const float* x, int64_t n) {
  Vec16 sum[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int s = 0; s < 4; ++s) {
      const Vec16 v = load(x + i + s * kLanes);
      sum[s] = fma(v, v, sum[s]);
    }
  }
  for (int s = 0; i < n; ++s, i += kLanes) {
    const Vec16 v = load_some(x + i, n - i < kLanes ? int(n - i) : kLanes);
    sum[s] = fma(v, v, sum[s]);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = sum_of_squares(x, n) / float(n);
  const Vec16 inverse_rms = set1(1.0f / __builtin_sqrtf(mean + eps));
  for_each_vector(n, [&](int64_t i, int count) {
    const Vec16 normalised = load_some(x + i, count) * inverse_rms;
    store_some(out + i, normalised * load_some(weight + i, count), count);
  });
}

void add(const float* a, const float* b, int64_t n, float* out) {
  for_each_vector(n, [&](int64_t i, int count) {
    store_some(out + i, load_some(a + i, count) + load_some(b + i, count), count);
  });
}

void rope(const float* head, int64_t head_dim, const float* cos, const float* sin, float* out) {
  const int64_t half = head_dim / 2;
  for_each_vector(half, [&](int64_t i, int count) {
    const Vec16 x = load_some(head + i, count);
    const Vec16 y = load_some(head + half + i, count);
    const Vec16 c = load_some(cos + i, count);
    const Vec16 s = load_some(sin + i, count);
    store_some(out + i, x * c - y * s, count);
    store_some(out + half + i, y * c + x * s, count);
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

const RowsKernels kRowsKernels = {&rms_norm, &add, &rope, &gate, &softcap};

}  // namespace takt::TAKT_ISA
