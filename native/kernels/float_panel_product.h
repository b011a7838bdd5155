// The products of a panel of f32, f16 or bf16 weights, written once for all instruction sets.
//
// Each element has two sums, taken in turns along K: of single columns for f32 and f16, whose
// activations are f32 and whose every step is rounded once (fma); of pairs of columns for bf16, whose
// activations are bf16 (float_lanes.h says how a pair is added). The result is s0 + s1. So blocks of
// any size on any instruction set give equal bits.
#pragma once
#include "kernels/float_lanes.h"
#include "kernels/panel.h"

namespace takt::TAKT_ISA {

// Two, so that a lone row does not wait for every sum; more would leave a block fewer rows.
inline constexpr int kFloatSums = 2;

// Bytes ahead of the stream that short blocks prefetch: the hardware's prefetchers stop at a page.
inline constexpr int kFloatPrefetchBytes = 8192;

// How the weights of a step along K meet the row's activations: `load` for all rows of a block,
// `add` for each.
template <QuantType kType>
struct FloatStep {
  using Activation = float;
  using Weights = F32x16;
  static constexpr int kCols = 1;
  static constexpr int kBytes = kPanelRows * panel_spec(kType).bits / 8;

  TAKT_INLINE static Weights load(const std::byte* from) {
    return kType == QuantType::kF32 ? load_f32(from) : load_f16(from);
  }
  TAKT_INLINE static F32x16 add_to(F32x16 sum, Weights w, const float* x) {
    return fma(w, broadcast(*x), sum);
  }
};

template <>
struct FloatStep<QuantType::kBF16> {
  using Activation = uint16_t;
  using Weights = Bf16Pairs;
  static constexpr int kCols = 2;
  static constexpr int kBytes = kPanelRows * 4;

  TAKT_INLINE static Weights load(const std::byte* from) { return load_pairs(from); }
  TAKT_INLINE static F32x16 add_to(F32x16 sum, Weights w, const uint16_t* x) {
    return add_pairs(sum, w, x);
  }
};

template <QuantType kType, int kRows>
void float_product(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                   float* tile) {
  using Step = FloatStep<kType>;
  using Activation = typename Step::Activation;
  F32x16 acc[kRows][kFloatSums];
  const Activation* x[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = reinterpret_cast<const Activation*>(rows[i]);
    for (int s = 0; s < kFloatSums; ++s) acc[i][s] = zero_f32();
  }
  const auto step = [&](int64_t n, int s) {
    const std::byte* from = panel + n * Step::kBytes;
    if constexpr (kRows <= 2) __builtin_prefetch(from + kFloatPrefetchBytes);
    const typename Step::Weights w = Step::load(from);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][s] = Step::add_to(acc[i][s], w, x[i] + n * Step::kCols);
  };
  const int64_t num_steps = (cols + Step::kCols - 1) / Step::kCols;
  int64_t n = 0;
  for (; n + kFloatSums <= num_steps; n += kFloatSums) {
#pragma GCC unroll 2
    for (int s = 0; s < kFloatSums; ++s) step(n + s, s);
  }
  if (n < num_steps) step(n, 0);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) store(tile + kPanelRows * i, add(acc[i][0], acc[i][1]));
}

}  // namespace takt::TAKT_ISA
