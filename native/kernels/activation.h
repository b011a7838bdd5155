// One row of activations as kernels see it: f32, bf16, int8 groups, or several of them.
//
// bf16 rows begin bf16_row_elements(k) apart, an odd number of 64-byte lines, so that rows at once fall
// into different sets of the cache; an odd k is followed by a zero.
//
// The int8 form ("q8 row") of a row of k values lies in one 64-byte aligned piece of memory:
//   int8  q[k]                 round-to-nearest-even of x * (127 / max |x|), in [-127, 127]
//   f32   scale[k / 32]        max |x| of a group of 32, / 127
//   f32   scaled_sum[k / 32]   scale * (sum of q over the group), rounded once
//   i16   sum[k / 16]          sum of q over each 16
// k is a multiple of 32. Each part begins on a 64-byte border.
#pragma once
#include <cstddef>
#include <cstdint>

namespace takt {

inline constexpr int64_t kGroup = 32;
inline constexpr int64_t kHalfGroup = 16;

inline constexpr size_t align64(size_t n) { return (n + 63) & ~size_t{63}; }

inline constexpr int64_t bf16_row_elements(int64_t k) { return ((k + 31) / 32 | 1) * 32; }

struct Q8Row {
  const int8_t* q;
  const float* scale;
  const float* scaled_sum;
  const int16_t* sum;
};

inline constexpr size_t q8_row_bytes(int64_t k) {
  return align64(size_t(k)) + 2 * align64(size_t(k / kGroup) * 4) +
         align64(size_t(k / kHalfGroup) * 2);
}

inline Q8Row q8_row_at(const std::byte* row, int64_t k) {
  const size_t scales = align64(size_t(k / kGroup) * 4);
  const std::byte* scale = row + align64(size_t(k));
  return {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(scale),
          reinterpret_cast<const float*>(scale + scales),
          reinterpret_cast<const int16_t*>(scale + 2 * scales)};
}

}  // namespace takt
