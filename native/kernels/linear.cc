#include "kernels/linear.h"

#include <algorithm>

#include "kernels/linear_kernels.h"
#include "kernels/packed_matrix.h"

namespace takt {
namespace {

// Rows of x that pass a panel before the next panel's turn: their int8 rows fit the second-level
// cache for K up to some thousands.
constexpr int kPassRows = 256;

struct Output {
  float* at;
  int64_t stride;
};

// A panel's rows [first, last) of one tile to the output, bias added.
void write_tile(const float* tile, int num_rows, int first, int last, const float* bias,
                const Output& out) {
  for (int i = 0; i < num_rows; ++i) {
    float* to = out.at + i * out.stride;
    const float* from = tile + kPanelRows * i + first;
    if (bias == nullptr) {
      std::copy(from, from + (last - first), to);
    } else {
      for (int r = 0; r < last - first; ++r) to[r] = from[r] + bias[r];
    }
  }
}

// The kernel's number of rows for a block of at most `num_rows`.
int block_size(const PanelProduct* products, int max_rows, int num_rows) {
  int size = std::min(num_rows, max_rows);
  while (products[size] == nullptr) ++size;
  return size;
}

// Rows [begin, end) of x times one part's rows [first, last).
void multiply_part(const PackedMatrix& w, const PackedPart& part, int64_t first, int64_t last,
                   const ActivationRows& x, int begin, int end, Output out) {
  static constexpr const LinearKernels* kTables[] = TAKT_ISA_TABLES(kLinearKernels);
  const LinearKernels& kernels = *kTables[isa_index()];
  const PanelProduct* products = kernels.product[int(part.type)];
  const bool is_float = panel_spec(part.type).is_float();
  const int max_rows = is_float ? kernels.max_float_rows : kernels.max_quant_rows;
  alignas(64) float tile[kMaxBlockRows * kPanelRows];

  for (int64_t panel = first / kPanelRows; panel * kPanelRows < last; ++panel) {
    const int64_t panel_first = panel * kPanelRows;
    const int lane_first = int(std::max(first - panel_first, int64_t{0}));
    const int lane_last = int(std::min(last - panel_first, int64_t{kPanelRows}));
    const int64_t row = panel_first + lane_first;
    const float* bias = w.bias() == nullptr ? nullptr : w.bias() + part.first_row + row;
    for (int i = begin; i < end;) {
      const int size = block_size(products, max_rows, end - i);
      const int used = std::min(size, end - i);
      const std::byte* rows[kMaxBlockRows];
      for (int j = 0; j < size; ++j) {
        const int source = i + std::min(j, used - 1);
        rows[j] = is_float ? reinterpret_cast<const std::byte*>(x.f32[source])
                           : reinterpret_cast<const std::byte*>(x.q8[source].q);
      }
      products[size](w.panel(part, panel), w.cols(), rows, tile);
      write_tile(tile, used, lane_first, lane_last, bias,
                 {out.at + i * out.stride + (row - first), out.stride});
      i += used;
    }
  }
}

}  // namespace

void linear(const PackedWeight& weight, int64_t n0, int64_t n1, const ActivationRows& x, float* out,
            int64_t out_stride) {
  const auto& w = static_cast<const PackedMatrix&>(weight);
  for (int begin = 0; begin < x.m; begin += kPassRows) {
    const int end = std::min(begin + kPassRows, x.m);
    for (const PackedPart& part : w.parts()) {
      const int64_t first = std::max(n0 - part.first_row, int64_t{0});
      const int64_t last = std::min(n1 - part.first_row, part.rows);
      if (first >= last) continue;
      multiply_part(w, part, first, last, x, begin, end,
                    {out + (part.first_row + first - n0), out_stride});
    }
  }
}

}  // namespace takt
