#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/quantize_kernels.h"

namespace takt {

void quantize_row(const float* x, int64_t k, std::byte* q8_row) {
  static constexpr const QuantizeKernels* kTables[] = TAKT_ISA_TABLES(kQuantizeKernels);
  const size_t scales = align64(size_t(k / kGroup) * 4);
  std::byte* scale = q8_row + align64(size_t(k));
  kTables[isa_index()]->row(x, k, reinterpret_cast<int8_t*>(q8_row),
                            reinterpret_cast<float*>(scale),
                            reinterpret_cast<float*>(scale + scales),
                            reinterpret_cast<int16_t*>(scale + 2 * scales));
}

}  // namespace takt
