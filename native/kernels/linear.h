// Packed weights and the products with them. Every function is pure: it reads its arguments and
// writes `out`, so that a tile may be computed twice by two threads and either result taken.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kernels/activation.h"

namespace takt {

// Storage types of a model file; values are those of the Python enum's order in bindings.
enum class QuantType : uint8_t {
  kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K
};

// One matrix of the model file: `rows` x `cols`, `raw` as the file stores it. It is packed in its own
// type, or converted to `packed_type`: F32, F16, BF16, Q8_0 or Q4_1.
struct RawMatrix {
  const std::byte* raw;
  QuantType type;
  int64_t rows;
  int64_t cols;
  std::optional<QuantType> packed_type = std::nullopt;

  QuantType target() const { return packed_type.value_or(type); }
};

// Rows of one or more matrices, stacked, repacked into panels of 16 rows for streaming.
// A stack may mix storage types. A panel holds rows of one part only: the last panel of a part
// whose rows are no multiple of 16 is filled up with zero rows, and stack rows keep their numbers.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual int64_t rows() const = 0;    // logical output features
  virtual int64_t cols() const = 0;    // K
  virtual bool is_quantised() const = 0;  // some part takes q8 rows, or bf16 rows in their stead
  virtual bool needs_f32() const = 0;     // some part takes f32 rows
  virtual bool needs_bf16() const = 0;    // some part of a float type takes bf16 rows
  virtual size_t bytes() const = 0;    // memory it holds
  // Where a product with rows [n0, n1) reads, in this order.
  virtual std::span<const std::byte> memory_of_rows(int64_t n0, int64_t n1) const = 0;
};

// Packs with `num_threads` threads, converting row by row: no matrix ever exists in f32. `bias` has
// rows() floats or is null; it is copied. Throws std::invalid_argument with a sentence if shapes do
// not agree, or where a value is too large for the type it is converted to.
std::unique_ptr<PackedWeight> pack_weight(std::span<const RawMatrix> parts, const float* bias,
                                          int num_threads);

// The rows a product is taken with: pointer arrays of m entries each; those that the weight does not
// need may be null. Rows are contiguous along K; a Q8Row is one that q8_row_at gave for cols(), a bf16
// row one that round_row_to_bf16 (round_bf16.h) wrote. With quantised weights the first `num_q8` rows
// are multiplied as q8 rows, the others as bf16 rows (widened_product.h): there the entries of the other
// form are not read. Many bf16 rows are fastest equally far apart.
struct ActivationRows {
  const Q8Row* q8;
  const float* const* f32;
  const uint16_t* const* bf16;
  int m;
  int num_q8;
};

// Products of few rows ask for weights well before they use them; `next` is where the calling thread
// reads on after the last of these, null if that is not known.
//
// out[i * out_stride + (n - n0)] = sum_k x[i][k] * w[n][k] + bias[n] for n in [n0, n1), i < m.
// n0 is a multiple of 16. The value of an element does not depend on n0, n1, m or i: sums are made in
// the order of K, whatever the blocking.
void linear(const PackedWeight& w, int64_t n0, int64_t n1, const ActivationRows& x, float* out,
            int64_t out_stride, const std::byte* next = nullptr);

// out[k] = w[row][k] * scale, dequantised; out has cols() floats.
void embed_row(const PackedWeight& w, int64_t row, float scale, float* out);

// Writes a q8 row (see activation.h) of k values. A group of zeros has scale 0; so has a group of
// magnitudes below 127 * 2^-126. A group with an infinity or NaN has scale inf or NaN.
void quantize_row(const float* x, int64_t k, std::byte* q8_row);

// Instruction sets that the kernels were built for and this CPU has, in order of preference;
// "generic" is always last. `select_isa` picks one by name for the process (tests), or the best
// when null; it throws std::invalid_argument for any other name.
std::span<const char* const> available_isas();
const char* selected_isa();
void select_isa(const char* name);

}  // namespace takt
