// Passes over a row of logits.
#include <cstdint>

#include "kernels/exp.h"
#include "kernels/sampling_kernels.h"
#include "kernels/vec16.h"

namespace takt::TAKT_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kBlock = 1024;

// -inf if there is nothing else.
float largest(const float* x, int64_t n) {
  const Vec16 none = set1(-kInfinity);
  Vec16 lane_max[4] = {none, none, none, none};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int s = 0; s < 4; ++s) lane_max[s] = max(load(x + i + s * kLanes), lane_max[s]);
  }
  for (; i < n; i += kLanes) {
    const int count = n - i < kLanes ? int(n - i) : kLanes;
    lane_max[0] = max(lanes_between(load_some(x + i, count), 0, count, none), lane_max[0]);
  }
  return max_lanes(max(max(lane_max[0], lane_max[1]), max(lane_max[2], lane_max[3])));
}

int64_t argmax(const float* x, int64_t n) {
  float best = -kInfinity;
  int64_t best_block = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const float block_max = largest(x + begin, n - begin < kBlock ? n - begin : kBlock);
    if (block_max > best) {
      best = block_max;
      best_block = begin;
    }
  }
  if (best == -kInfinity) return 0;
  int64_t i = best_block;
  while (x[i] != best) ++i;
  return i;
}

// Within 2^-22 of the sum, relative: a block adds 64 terms to each lane in float, blocks are added
// in double.
double sum_exp(const float* x, int64_t n, float max_x) {
  const Vec16 zero = set1(0.0f);
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    Vec16 block = zero;
    for_each_vector(n - begin < kBlock ? n - begin : kBlock, [&](int64_t i, int count) {
      const Vec16 e = max(exp(load_some(x + begin + i, count) - set1(max_x)), zero);
      block = block + lanes_between(e, 0, count, zero);
    });
    sum += double(sum_lanes(block));
  }
  return sum;
}

int64_t count_ahead(const float* x, int64_t n, int64_t index) {
  const Vec16 value = set1(x[index]);
  int64_t count = 0;
  for_each_vector(n, [&](int64_t i, int lanes) {
    const uint32_t valid = (1u << lanes) - 1;
    const Vec16 v = load_some(x + i, lanes);
    uint32_t ahead = greater_mask(v, value);
    if (i < index) {
      const int64_t before = index - i;
      const uint32_t mask = before < kLanes ? (1u << before) - 1 : 0xffffu;
      ahead |= equal_mask(v, value) & mask;
    }
    count += __builtin_popcount(ahead & valid);
  });
  return count;
}

int64_t find_above(const float* x, int64_t begin, int64_t n, float bound) {
  const Vec16 b = set1(bound);
  int64_t i = begin;
  for (; i + kLanes <= n; i += kLanes) {
    const uint32_t above = greater_mask(load(x + i), b);
    if (above != 0) return i + __builtin_ctz(above);
  }
  while (i < n && !(x[i] > bound)) ++i;
  return i;
}

void weights(const float* x, int64_t n, float max_x, float inverse_temperature, uint32_t* weight) {
  const auto of = [&](Vec16 v) __attribute__((always_inline)) {
    const Vec16 p = exp((v - set1(max_x)) * set1(inverse_temperature));
    return max(p, set1(0.0f)) * set1(kWeightOne);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_rounded(weight + i, of(load(x + i)));
  if (i < n) {
    uint32_t last[kLanes];
    store_rounded(last, of(load_first(x + i, int(n - i))));
    for (int64_t j = i; j < n; ++j) weight[j] = last[j - i];
  }
}

}  // namespace

const SamplingKernels kSamplingKernels = {&argmax, &sum_exp, &count_ahead, &find_above, &weights};

}  // namespace takt::TAKT_ISA
