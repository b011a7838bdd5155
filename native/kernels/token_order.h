// The order of tokens: descending logit, ties by ascending id; NaN counts as -inf.
#pragma once
#include <cstdint>
#include <limits>

#include "kernels/float16.h"

namespace takt {

// Keys ascend in the order of tokens. Negative zero equals zero.
inline uint64_t token_key(float logit, int64_t token) {
  if (logit != logit) logit = -std::numeric_limits<float>::infinity();
  const uint32_t bits = bits_from_float(logit + 0.0f);
  const uint32_t descending = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
  return uint64_t(descending) << 32 | uint32_t(token);
}

inline int32_t token_of_key(uint64_t key) { return int32_t(uint32_t(key)); }

}  // namespace takt
