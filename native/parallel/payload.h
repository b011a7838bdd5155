// What a rank sends of a row of values: themselves, or fewer bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace takt {

enum class Payload : uint8_t { kF32, kBF16, kF16, kInt8 };

// "float32", "bfloat16", "float16" or "int8"; throws std::invalid_argument for another name.
Payload payload_of(const std::string& name);

// Widths of compressed rows, and the columns at which they are cut, are multiples of it: values of
// an int8 group share their scale.
inline constexpr int64_t kPayloadGroup = 32;

// A compressed row of `width` values, in at most half of the bytes that they have as float32. An
// int8 row has the scales behind the values, in float32: 16 bits would save a byte in 18, and cost
// another rounding of each value.
class CompressedRow {
 public:
  CompressedRow(Payload payload, std::byte* bytes, int64_t width)
      : payload_(payload), bytes_(bytes), width_(width) {}

  // Rounds x, whose first value is that of column col0, into columns [col0, col1).
  void write(const float* x, int64_t col0, int64_t col1) const;
  // out[i] = column col0 + i.
  void read(int64_t col0, int64_t col1, float* out) const;
  // sum[i] += column col0 + i.
  void add(int64_t col0, int64_t col1, float* sum) const;

 private:
  uint16_t* halves(int64_t col) const { return reinterpret_cast<uint16_t*>(bytes_) + col; }
  int8_t* bytes(int64_t col) const { return reinterpret_cast<int8_t*>(bytes_) + col; }
  float* scales(int64_t col) const {
    return reinterpret_cast<float*>(bytes_ + width_) + col / kPayloadGroup;
  }

  Payload payload_;
  std::byte* bytes_;
  int64_t width_;
};

}  // namespace takt
