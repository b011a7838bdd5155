// The table of products with quantised weights for one instruction set.
#include "kernels/block_product.h"
#include "kernels/linear_kernels.h"
#include "kernels/panel_product.h"

namespace takt::TAKT_ISA {
namespace {

// Rows of an innermost loop, whose sums stay in registers: while a panel streams by, and of a block.
#if defined(__AVX512VNNI__)
constexpr int kStreamRows = 12;  // of 32 registers; a group's weights take 8
constexpr int kBlockRows = 16;
#elif defined(__AVX2__)
constexpr int kStreamRows = 4;  // of 16 registers, two for each row; weights are read from the cache
constexpr int kBlockRows = 4;
#else
constexpr int kStreamRows = 4;
constexpr int kBlockRows = 4;
#endif
static_assert(kStreamRows <= kMaxStreamRows);

template <QuantType kType, int kRows>
constexpr void add_stream(StreamProduct* stream) {
  if constexpr (kRows <= kStreamRows) stream[kRows] = &quant_product<kType, kRows>;
}

template <QuantType kType>
constexpr void fill(LinearKernels& out) {
  if constexpr (!panel_spec(kType).is_float()) {
    StreamProduct* stream = out.stream[int(kType)];
    add_stream<kType, 1>(stream);
    add_stream<kType, 2>(stream);
    add_stream<kType, 3>(stream);
    add_stream<kType, 4>(stream);
    add_stream<kType, 6>(stream);
    add_stream<kType, 8>(stream);
    add_stream<kType, 12>(stream);
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
  out.max_stream_rows = kStreamRows;
  fill_types<0>(out);
  return out;
}

}  // namespace

const LinearKernels kLinearKernels = make_table();

}  // namespace takt::TAKT_ISA
