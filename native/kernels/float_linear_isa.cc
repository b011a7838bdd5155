// The table of products with float weights for one instruction set.
#include "kernels/float_linear_kernels.h"
#include "kernels/float_panel_product.h"

namespace takt::TAKT_ISA {
namespace {

// Sizes of blocks. A size that is missing is filled up to the next with repeated rows.
struct FloatSizes {
  bool has[kMaxFloatBlockRows + 1];
  int max;
};

#if defined(__AVX512F__)
// Of 32 registers 24 hold sums.
constexpr FloatSizes kSizes = {{0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1}, 12};
#elif defined(__AVX2__)
// 16 registers of half the width: 8 hold sums.
constexpr FloatSizes kSizes = {{0, 1, 1}, 2};
#else
constexpr FloatSizes kSizes = {{0, 1, 0, 0, 1}, 4};
#endif

template <QuantType kType, int kRows>
constexpr void fill(FloatLinearKernels& out) {
  if constexpr (kRows <= kMaxFloatBlockRows) {
    if constexpr (kSizes.has[kRows]) {
      out.product[int(kType)][kRows] = &float_product<kType, kRows>;
    }
    fill<kType, kRows + 1>(out);
  }
}

constexpr FloatLinearKernels make_table() {
  FloatLinearKernels out{};
  out.max_rows = kSizes.max;
  fill<QuantType::kF32, 1>(out);
  fill<QuantType::kF16, 1>(out);
  fill<QuantType::kBF16, 1>(out);
  return out;
}

}  // namespace

const FloatLinearKernels kFloatLinearKernels = make_table();

}  // namespace takt::TAKT_ISA
