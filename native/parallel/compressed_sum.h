// An all-reduce in two steps whose values cross between ranks rounded to a payload.
//
// Each rank rounds its values and publishes them. Then rank r sums columns r/N to (r+1)/N of all
// ranks in float32, in the order of ranks, rounds the sum, and publishes that. All read all sums: so
// every rank has the same bits, and for N > 2 less is read than by a sum of whole rows.
//
// A value is rounded once before the sum and its sum once after it. With r the largest relative
// error of a rounding (bf16 2^-8, fp16 2^-11 above 2^-14) and x_i the terms, to first order
//   |error| <= r (sum |x_i| + |sum x_i|),
// and with int8 the sum of half steps: max |x_i| / 254 of the value's group for each term, and
// max |sum x_i| / 254. What is below the range of a type counts as half of its smallest step; what
// is above fp16's becomes 65504.
#pragma once
#include <cstddef>
#include <cstdint>

#include "parallel/communicator.h"

namespace takt {

class CompressedSum {
 public:
  // One row of `width` values (a multiple of kPayloadGroup) in collective n of `group`, at `at`
  // bytes of the slots: rounded values in the first half of its 4 * width bytes, sums in the second.
  CompressedSum(const Communicator& group, uint64_t n, size_t at, int64_t width)
      : group_(group), n_(n), at_(at), width_(width) {}

  // This rank's values; publish then.
  void write(const float* x) const;
  // Once all have published: sums this rank's columns. `scratch` has room for `width` values.
  // publish_sums then.
  void sum_share(float* scratch) const;
  // Once all have published sums.
  void read(float* out) const;

 private:
  CompressedRow row(int rank) const;
  CompressedRow sums(int rank) const;
  int64_t first_column(int rank) const;

  const Communicator& group_;
  uint64_t n_;
  size_t at_;
  int64_t width_;
};

}  // namespace takt
