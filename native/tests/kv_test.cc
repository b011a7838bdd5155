// What is written to the KV cache, read back through attention over a single token: the output is
// the token's value.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/float8.h"
#include "kernels/kv.h"
#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/kv_reference.h"
#include "tests/random.h"

namespace takt {
namespace {

constexpr int64_t kHeadDim = 16, kBlockSize = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// V of one token, as attention gives it back.
std::vector<float> read_back(KVType type, std::vector<float> v) {
  v.resize(kHeadDim);
  KVLayer layer{nullptr, nullptr, type, 1, kBlockSize, kHeadDim};
  std::vector<std::byte> k_cache(layer.block_bytes()), v_cache(layer.block_bytes());
  layer.k = k_cache.data();
  layer.v = v_cache.data();
  const std::vector<float> k(kHeadDim, 0.5f), q(kHeadDim, 1.0f);
  kv_store(layer, 0, 0, k.data(), v.data());
  const int32_t block = 0, position = 0;
  std::vector<float> partial(partial_floats(kHeadDim)), out(kHeadDim);
  const float* query = q.data();
  float* result = partial.data();
  attention_split({layer, &block, 0.25f, 0.0f, 0, 1}, 0, 0, 1, &position, &query, &result);
  attention_finish(partial.data(), kHeadDim, out.data());
  return out;
}

void test_bf16_rounds_to_nearest_even() {
  const std::vector<float> in = {1.0f,         0x1.01p0f,  0x1.03p0f,
                                 0x1.010002p0f, -0x1.01p0f, 0x1.02fffep0f};
  const std::vector<float> want = {1.0f, 1.0f, 0x1.04p0f, 0x1.02p0f, -1.0f, 0x1.02p0f};
  const auto out = read_back(KVType::kBF16, in);
  for (size_t i = 0; i < in.size(); ++i) CHECK(out[i] == want[i], "%a", double(in[i]));
}

void test_every_e4m3_code_is_read_as_its_value() {
  for (const char* isa : available_isas()) {
    select_isa(isa);
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;  // NaN
      const float value = test::value_of_e4m3(code);
      CHECK(e4m3_from_float(value) == code, "%d", code);
      CHECK(read_back(KVType::kFP8E4M3, {value, 1.0f})[0] == value, "%s: %d", isa, code);
    }
  }
  select_isa(nullptr);
}

void test_e4m3_rounds_to_nearest_even_and_saturates() {
  test::Random random(3);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::ldexp(random.between(-1.0f, 1.0f), int(random.below(22)) - 12);
    CHECK(test::value_of_e4m3(e4m3_from_float(x)) == test::as_e4m3(x), "%a", double(x));
  }
  for (int code = 0; code < 0x7e; ++code) {  // halfway between neighbours, and just beside
    const float half = (test::value_of_e4m3(code) + test::value_of_e4m3(code + 1)) / 2.0f;
    CHECK(e4m3_from_float(half) == code + code % 2, "%d", code);
    CHECK(e4m3_from_float(std::nextafter(half, 1000.0f)) == code + 1, "%d", code);
    CHECK(e4m3_from_float(std::nextafter(half, 0.0f)) == code, "%d", code);
  }
  for (float x : {448.0f, 449.0f, 464.0f, 465.0f, 1e30f, kInfinity}) {
    CHECK(e4m3_from_float(x) == 0x7e && e4m3_from_float(-x) == 0xfe, "%g", double(x));
  }
  CHECK((e4m3_from_float(kNaN) & 0x7f) == 0x7f);
}

void test_int8_keeps_within_half_a_step_of_the_largest() {
  test::Random random(4);
  for (int i = 0; i < 300; ++i) {
    std::vector<float> in(kHeadDim);
    const int exponent = int(random.below(200)) - 95;
    float largest = 0.0f;
    for (float& x : in) {
      x = std::ldexp(random.between(-1.0f, 1.0f), exponent);
      largest = std::max(largest, std::abs(x));
    }
    const auto out = read_back(KVType::kInt8, in);
    // The scale is at most 2^-7 above largest / 127.
    const double step = double(largest) / 127.0 * (1.0 + 0x1p-7);
    for (size_t d = 0; d < in.size(); ++d) {
      CHECK(std::abs(double(out[d]) - double(in[d])) <= step * 0.5 * (1.0 + 0x1p-15), "%a as %a",
            double(in[d]), double(out[d]));
    }
  }
}

void test_int8_of_rows_that_have_no_scale() {
  CHECK(read_back(KVType::kInt8, {}) == std::vector<float>(kHeadDim, 0.0f));
  for (float x : read_back(KVType::kInt8, {1e-38f, -1e-44f})) CHECK(x == 0.0f);
  for (float bad : {kInfinity, -kInfinity, kNaN}) {
    for (float x : read_back(KVType::kInt8, {1.0f, bad, 2.0f})) CHECK(!std::isfinite(x));
  }
  CHECK(std::isfinite(read_back(KVType::kInt8, {std::numeric_limits<float>::max()})[0]));
}

void test_bytes_of_a_block() {
  const auto bytes = [](KVType type) {
    return KVLayer{nullptr, nullptr, type, 3, 16, 64}.block_bytes();
  };
  CHECK(bytes(KVType::kF32) == 3 * 16 * 64 * 4);
  CHECK(bytes(KVType::kBF16) == 3 * 16 * 64 * 2);
  CHECK(bytes(KVType::kFP8E4M3) == 3 * 16 * 64);
  CHECK(bytes(KVType::kInt8) == 3 * 16 * (64 + 2));
}

}  // namespace
}  // namespace takt

int main() {
  takt::test_bf16_rounds_to_nearest_even();
  takt::test_every_e4m3_code_is_read_as_its_value();
  takt::test_e4m3_rounds_to_nearest_even_and_saturates();
  takt::test_int8_keeps_within_half_a_step_of_the_largest();
  takt::test_int8_of_rows_that_have_no_scale();
  takt::test_bytes_of_a_block();
}
