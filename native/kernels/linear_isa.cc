// The table of products with quantised weights for one instruction set.
#include "kernels/block_product.h"
#include "kernels/linear_kernels.h"
#include "kernels/panel_product.h"

namespace takt::TAKT_ISA {
namespace {

// Rows of a block's innermost loop, whose sums stay in registers.
#if defined(__AVX512VNNI__)
constexpr int kBlockRows = 16;  // of 32 registers; a group's weights take 8
#elif defined(__AVX2__)
constexpr int kBlockRows = 4;  // of 16 registers, two for each row; weights are read from the cache
#else
constexpr int kBlockRows = 4;
#endif

template <QuantType kType>
constexpr void fill(LinearKernels& out) {
  if constexpr (!panel_spec(kType).is_float()) {
    StreamProduct* stream = out.stream[int(kType)];
    stream[1] = &quant_product<kType, 1>;
    stream[2] = &quant_product<kType, 2>;
    stream[3] = &quant_product<kType, 3>;
    stream[4] = &quant_product<kType, 4>;
    out.block[int(kType)] = &block_product<kType, kBlockRows>;
  }
}

template <int kType>
constexpr void fill_types(LinearKernels& out) {
  if constexpr (kType < kNumQuantTypes) {
    fill<QuantType(kType)>(out);
    fill_types<kType + 1>(out);
  }
}

constexpr LinearKernels make_table() {
  LinearKernels out{};
  fill_types<0>(out);
  return out;
}

}  // namespace

const LinearKernels kLinearKernels = make_table();

}  // namespace takt::TAKT_ISA
