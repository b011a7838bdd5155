// What each build of rows_isa.cc offers; attention.h has the contracts.
#pragma once
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/isa.h"

namespace takt {

struct RowsKernels {
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  void (*add_rms_norm)(const float* a, const float* b, const float* weight, float eps, int64_t n,
                       float* sum, float* out);
  void (*add)(const float* a, const float* b, int64_t n, float* out);
  void (*rope)(const float* heads, int64_t num_heads, int64_t head_dim, const float* cos,
               const float* sin, float* out);
  void (*gate)(Gate kind, const float* gate, const float* up, int64_t n, float* out);
  void (*softcap)(const float* x, float cap, int64_t n, float* out);
};
TAKT_DECLARE_ISA_TABLE(RowsKernels, kRowsKernels)

}  // namespace takt
