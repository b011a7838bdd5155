// The products of a panel of f32, f16 or bf16 weights with f32 rows, written once for all
// instruction sets. Each element has four sums, of the columns k with equal k mod 4 in the order
// of K, products and sums rounded to f32 one by one; the result is (s0 + s1) + (s2 + s3). So
// blocks of any size on any instruction set give equal bits.
#pragma once
#include "kernels/lanes.h"
#include "kernels/panel.h"

namespace takt::TAKT_ISA {

inline constexpr int kFloatSums = 4;

template <QuantType kType>
TAKT_INLINE F32x16 load_weights(const std::byte* from) {
  if constexpr (kType == QuantType::kF32) return load_f32(from);
  if constexpr (kType == QuantType::kF16) return load_f16(from);
  if constexpr (kType == QuantType::kBF16) return load_bf16(from);
}

template <QuantType kType, int kRows>
void float_product(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                   float* tile) {
  constexpr int kStep = panel_spec(kType).block_bytes();
  F32x16 acc[kRows][kFloatSums];
  const float* x[kRows];
  for (int i = 0; i < kRows; ++i) {
    x[i] = reinterpret_cast<const float*>(rows[i]);
    for (int s = 0; s < kFloatSums; ++s) acc[i][s] = zero_f32();
  }
  const auto step = [&](int64_t k, int s) {
    const F32x16 w = load_weights<kType>(panel + k * kStep);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) acc[i][s] = add(acc[i][s], mul(w, broadcast(x[i][k])));
  };
  int64_t k = 0;
  for (; k + kFloatSums <= cols; k += kFloatSums) {
#pragma GCC unroll 4
    for (int s = 0; s < kFloatSums; ++s) step(k + s, s);
  }
  // The last columns, with constant indices so that the sums stay in registers.
  if (k < cols) step(k, 0);
  if (k + 1 < cols) step(k + 1, 1);
  if (k + 2 < cols) step(k + 2, 2);
  for (int i = 0; i < kRows; ++i) {
    store(tile + kPanelRows * i, add(add(acc[i][0], acc[i][1]), add(acc[i][2], acc[i][3])));
  }
}

}  // namespace takt::TAKT_ISA
