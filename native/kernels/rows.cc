#include "kernels/attention.h"
#include "kernels/rows_kernels.h"

namespace takt {
namespace {

const RowsKernels& kernels() {
  static constexpr const RowsKernels* kTables[] = TAKT_ISA_TABLES(kRowsKernels);
  return *kTables[isa_index()];
}

}  // namespace

void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* out) {
  kernels().rms_norm(x, weight, eps, n, out);
}

void add_rms_norm_row(const float* a, const float* b, const float* weight, float eps, int64_t n,
                      float* sum, float* out) {
  kernels().add_rms_norm(a, b, weight, eps, n, sum, out);
}

void add_row(const float* a, const float* b, int64_t n, float* out) {
  kernels().add(a, b, n, out);
}

void rope_heads(const float* heads, int64_t num_heads, int64_t head_dim, const float* cos,
                const float* sin, float* out) {
  kernels().rope(heads, num_heads, head_dim, cos, sin, out);
}

void gate_row(Gate kind, const float* gate, const float* up, int64_t n, float* out) {
  kernels().gate(kind, gate, up, n, out);
}

void softcap_row(const float* x, float cap, int64_t n, float* out) {
  kernels().softcap(x, cap, n, out);
}

}  // namespace takt
