// The table of products for one instruction set.
#include "kernels/float_panel_product.h"
#include "kernels/linear_kernels.h"
#include "kernels/panel_product.h"

namespace takt::TAKT_ISA {
namespace {

// Sizes of blocks. A block's sums stay in registers and its weights are unpacked once; a size that
// is missing is filled up to the next with repeated rows.
struct Sizes {
  bool has[kMaxBlockRows + 1];
  int max;
};

#if defined(__AVX512VNNI__)
// Of 32 registers 16 hold sums, 8 a group's weights.
constexpr Sizes kQuantSizes = {{0, 1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1}, 16};
constexpr Sizes kFloatSizes = {{0, 1, 1, 0, 1}, 4};
#elif defined(__AVX2__)
// Of 16 registers a group's weights alone would take all: they stay in the first-level cache.
constexpr Sizes kQuantSizes = {{0, 1, 1, 0, 1, 0, 0, 0, 1}, 8};
constexpr Sizes kFloatSizes = {{0, 1, 1}, 2};
#else
constexpr Sizes kQuantSizes = {{0, 1, 0, 0, 1}, 4};
constexpr Sizes kFloatSizes = {{0, 1, 0, 0, 1}, 4};
#endif

template <QuantType kType, int kRows>
constexpr void fill(LinearKernels& out) {
  constexpr bool kFloat = panel_spec(kType).is_float();
  constexpr const Sizes& kSizes = kFloat ? kFloatSizes : kQuantSizes;
  if constexpr (kRows <= kMaxBlockRows) {
    if constexpr (kSizes.has[kRows]) {
      if constexpr (kFloat) {
        out.product[int(kType)][kRows] = &float_product<kType, kRows>;
      } else {
        out.product[int(kType)][kRows] = &quant_product<kType, kRows>;
      }
    }
    fill<kType, kRows + 1>(out);
  }
}

template <int kType>
constexpr void fill_types(LinearKernels& out) {
  if constexpr (kType < kNumQuantTypes) {
    fill<QuantType(kType), 1>(out);
    fill_types<kType + 1>(out);
  }
}

constexpr LinearKernels make_table() {
  LinearKernels out{};
  out.max_quant_rows = kQuantSizes.max;
  out.max_float_rows = kFloatSizes.max;
  fill_types<0>(out);
  return out;
}

}  // namespace

const LinearKernels kLinearKernels = make_table();

}  // namespace takt::TAKT_ISA
