// Attention over a cache of int8 at numbers that no model should make.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "tests/attention_reference.h"
#include "tests/check.h"

namespace takt {
namespace {

using namespace test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// With 3 heads one token goes without the matrix unit; with 16 it goes with it.
constexpr int64_t kHeads[] = {3, 16};

Shape shape_of(int64_t heads, float softcap = 0.0f) {
  return {64, 16, 1, heads, 0, softcap, KVType::kInt8, 90};
}

void set_query(Sequence* s, int32_t position, int64_t head, float value) {
  s->q[size_t(position * s->shape.heads_per_kv + head) * 64 + 5] = value;
}

// Only the row whose query is not finite is lost, and all of it.
void test_a_query_that_is_no_number_makes_its_own_row_none() {
  for (const int64_t heads : kHeads) {
    for (const float softcap : {0.0f, 20.0f}) {
      for (const float bad : {kNaN, kInfinity, -kInfinity}) {
        Sequence s(shape_of(heads, softcap), 21);
        const auto before = attend(s, 0, {89});
        set_query(&s, 89, 1, bad);
        for (const char* isa : available_isas()) {
          select_isa(isa);
          const auto after = attend(s, 0, {89});
          for (size_t i = 0; i < after.size(); ++i) {
            const bool is_bad_row = i / 64 == 1;
            CHECK(is_bad_row ? std::isnan(after[i]) : after[i] == before[i], "%s: element %zu", isa,
                  i);
          }
        }
        select_isa(nullptr);
      }
    }
  }
}

// Keys and values that are not finite spoil those that see them, and nobody before them.
void test_keys_and_values_that_are_no_numbers() {
  for (const int64_t heads : kHeads) {
    for (const bool is_key : {false, true}) {
      for (const float bad : {kNaN, kInfinity}) {
        Sequence s(shape_of(heads), 22);
        const auto before = attend(s, 0, {40, 41, 42});
        (is_key ? s.k : s.v)[42 * 64 + 7] = bad;
        s.layer.k = s.k_cache.data();
        s.layer.v = s.v_cache.data();
        s.write(42);
        for (const char* isa : available_isas()) {
          select_isa(isa);
          const auto after = attend(s, 0, {40, 41, 42});
          const size_t row = size_t(heads) * 64;
          for (size_t i = 0; i < after.size(); ++i) {
            CHECK(i < 2 * row ? after[i] == before[i] : std::isnan(after[i]), "%s: element %zu",
                  isa, i);
          }
        }
        select_isa(nullptr);
      }
    }
  }
}

// Of queries that are too small to count, and of the largest; and where all V are 0.
void test_the_smallest_and_the_largest() {
  for (const int64_t heads : kHeads) {
    for (const float size : {0.0f, 0x1p-140f, 0x1p-101f, 0x1p-90f, 0x1p120f}) {
      Sequence s(shape_of(heads), 23);
      for (float& x : s.q) x = std::copysign(size, x);
      std::vector<float> first;
      for (const char* isa : available_isas()) {
        select_isa(isa);
        const auto out = attend(s, 0, {88, 89});
        if (first.empty()) first = out;
        CHECK(out == first, "%s: %g", isa, double(size));
        for (const float x : out) CHECK(std::abs(x) <= 2.1f, "%s: %g", isa, double(x));
      }
      select_isa(nullptr);
    }
    Sequence s(shape_of(heads), 24);
    for (float& x : s.v) x = 0.0f;
    for (int64_t p = 0; p < s.shape.context; ++p) s.write(p);
    for (const char* isa : available_isas()) {
      select_isa(isa);
      for (const float x : attend(s, 0, {89})) CHECK(x == 0.0f, "%s", isa);
    }
    select_isa(nullptr);
  }
}

}  // namespace
}  // namespace takt

int main() {
  takt::test_a_query_that_is_no_number_makes_its_own_row_none();
  takt::test_keys_and_values_that_are_no_numbers();
  takt::test_the_smallest_and_the_largest();
}
