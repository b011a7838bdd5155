// One panel of 16 rows from a model file's rows, in their own type or converted.
#pragma once
#include <vector>

#include "kernels/linear.h"
#include "kernels/pack_block.h"
#include "kernels/quantize_weights.h"

namespace takt {

// Whether other types can be converted to `type`.
constexpr bool can_be_packed_as(QuantType type) {
  return panel_spec(type).is_float() || is_made_from_floats(type);
}

// The largest magnitude that a conversion to `type` may meet. f32 and bf16 hold infinities as they
// come; the others have f16 numbers, which a scale of 8 bits multiplies by 127.
float largest_packed(QuantType type);

// A thread's worker; it owns the room for one row in f32.
class PanelPacker {
 public:
  explicit PanelPacker(int64_t cols) : row_(size_t(cols)) {}

  // Packs rows 16 * index and on of `matrix`; lanes past its last row are 0. Returns the largest
  // magnitude met in a conversion (infinity for a NaN); 0 where none was needed.
  float pack(const RawMatrix& matrix, int64_t index, std::byte* to);

 private:
  float convert_row(const RawMatrix& matrix, const std::byte* from, int lane, std::byte* to);

  std::vector<float> row_;
};

}  // namespace takt
