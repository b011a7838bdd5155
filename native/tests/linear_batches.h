// Products of batches of every size against those of single rows.
#pragma once
#include <cstring>
#include <random>
#include <vector>

#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/linear_reference.h"

namespace takt::test {

// With quantised weights the first `num_q8` rows are q8 rows; all if it is not given.
inline std::vector<float> multiply(const PackedWeight& w, const RandomRows& x, int m,
                                   int num_q8 = 1 << 30) {
  std::vector<float> out(size_t(w.rows() * m));
  linear(w, 0, w.rows(), x.view(m, std::min(m, num_q8)), out.data(), w.rows());
  return out;
}

inline bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Each of `m` rows alone.
inline std::vector<float> one_by_one(const PackedWeight& w, const RandomRows& x, int m,
                                     int num_q8) {
  std::vector<float> out(size_t(m * w.rows()));
  for (int i = 0; i < m; ++i) {
    const ActivationRows one = {x.q8.empty() ? nullptr : &x.q8[size_t(i)], &x.f32_rows[size_t(i)],
                                &x.bf16_rows[size_t(i)], 1, i < num_q8 ? 1 : 0};
    linear(w, 0, w.rows(), one, out.data() + i * w.rows(), w.rows());
  }
  return out;
}

// All up to 70, or a choice of them where code runs slowly.
inline std::vector<int> small_batches() {
  std::vector<int> sizes;
  for (int m = 1; m <= 70; m += kIsSanitized && m > 17 ? 13 : 1) sizes.push_back(m);
  return sizes;
}

// Each row of x alone, on the generic build, is what batches of every size on every build must give.
inline void batches_equal_single_rows(const RandomMatrix& raw, int num_q8,
                                      const std::vector<int>& sizes, std::mt19937& rng) {
  const int max_m = sizes.back();
  const RandomRows x(max_m, raw.cols, rng);
  const RawMatrix view = raw.view();
  const auto w = pack_weight({&view, 1}, nullptr, 1);

  select_isa("generic");
  const std::vector<float> single = one_by_one(*w, x, max_m, num_q8);
  for (const char* isa : available_isas()) {
    select_isa(isa);
    for (const int m : sizes) {
      const std::vector<float> expected(single.begin(), single.begin() + m * raw.rows);
      CHECK(equal_bits(multiply(*w, x, m, num_q8), expected), "%s type %d q8 %d m %d", isa,
            int(raw.type), num_q8, m);
    }
  }
}

}  // namespace takt::test
