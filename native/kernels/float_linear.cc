#include "kernels/float_linear.h"

#include <algorithm>

#include "kernels/float_linear_kernels.h"

namespace takt {

void multiply_float_panel(QuantType type, const std::byte* panel, int64_t cols,
                          const std::byte* const* rows, int num_rows, float* tile) {
  static constexpr const FloatLinearKernels* kTables[] =
      TAKT_ISA_TABLES_WITH_BF16(kFloatLinearKernels);
  const FloatLinearKernels& kernels = *kTables[isa_index()];
  const FloatProduct* products = kernels.product[int(type)];
  for (int i = 0; i < num_rows;) {
    const int used = std::min(num_rows - i, kernels.max_rows);
    int size = used;
    while (products[size] == nullptr) ++size;
    if (size == used) {
      products[size](panel, cols, rows + i, tile + i * kPanelRows);
    } else {  // filled up with a repeated row
      const std::byte* filled[kMaxFloatBlockRows];
      for (int j = 0; j < size; ++j) filled[j] = rows[i + std::min(j, used - 1)];
      alignas(64) float sums[kMaxFloatBlockRows * kPanelRows];
      products[size](panel, cols, filled, sums);
      std::copy_n(sums, used * kPanelRows, tile + i * kPanelRows);
    }
    i += used;
  }
}

}  // namespace takt
