// What is written to the KV cache, read back through attention over a single token: the output is
// the token's value.
#include <bit>
#include <cmath>
#include <cstddef>
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
    const int exponent = int(random.below(150)) - 45;
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
  for (float x : read_back(KVType::kInt8, {0x1.8p-50f, -1e-44f})) CHECK(x == 0.0f);
  for (float bad : {kInfinity, -kInfinity, kNaN}) {
    for (float x : read_back(KVType::kInt8, {1.0f, bad, 2.0f})) CHECK(!std::isfinite(x));
  }
  CHECK(std::isfinite(read_back(KVType::kInt8, {std::numeric_limits<float>::max()})[0]));
}

// Numbers at the edges of rounding to bf16, and numbers that are none.
std::vector<float> special_floats() {
  std::vector<float> out = {0.0f, -0.0f, kInfinity, -kInfinity, kNaN, -kNaN, 0x1.ffp-57f,
                            -0x1.ffp-57f, 0x1.fefffep-57f, 0x1p-56f, 1e-40f, -1e-40f, 3e38f};
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff80ffffu, 0x7f7fffffu,
                              0x3f808000u, 0x3f818000u, 0x3f808001u}) {
    out.push_back(std::bit_cast<float>(bits));
  }
  return out;
}

// Tokens stored together leave the bytes that they leave one by one, those of other slots too.
void test_rows_are_stored_as_one_by_one(KVType type, int64_t head_dim, int64_t block_size) {
  test::Random random(5);
  const std::vector<float> special = special_floats();
  const int64_t num_blocks = 4, num_heads = 2, rows = 45;
  const int64_t k_stride = head_dim + 3, v_stride = 2 * head_dim;
  KVLayer layer{nullptr, nullptr, type, num_heads, block_size, head_dim};
  std::vector<float> k(size_t(rows * k_stride)), v(size_t(rows * v_stride));
  for (std::vector<float>* values : {&k, &v}) {
    for (float& x : *values) {
      x = random.below(8) == 0 ? special[size_t(random.below(int64_t(special.size())))]
                               : random.between(-2.0f, 2.0f);
    }
  }
  std::vector<int64_t> slots;  // runs of every length, from anywhere
  while (slots.size() < size_t(rows)) {
    int64_t slot = random.below(num_blocks * block_size);
    for (int64_t run = random.below(20); run >= 0 && slot < num_blocks * block_size; --run) {
      slots.push_back(slot++);
    }
  }
  const std::vector<std::byte> empty(layer.block_bytes() * size_t(num_blocks), std::byte(0x5a));
  for (const char* isa : available_isas()) {
    select_isa(isa);
    std::vector<std::byte> k_one = empty, v_one = empty, k_all = empty, v_all = empty;
    for (int64_t head = 0; head < num_heads; ++head) {
      layer.k = k_one.data();
      layer.v = v_one.data();
      for (int64_t i = 0; i < rows; ++i) {
        kv_store(layer, slots[size_t(i)], head, &k[size_t(i * k_stride)], &v[size_t(i * v_stride)]);
      }
      layer.k = k_all.data();
      layer.v = v_all.data();
      kv_store_rows(layer, slots.data(), rows, head, k.data(), k_stride, v.data(), v_stride);
    }
    CHECK(k_one == k_all && v_one == v_all, "%s: head_dim %d, block_size %d", isa, int(head_dim),
          int(block_size));
  }
  select_isa(nullptr);
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
  for (const int64_t head_dim : {16, 24, 40, 64, 80, 256}) {
    for (const int64_t block_size : {8, 16, 24, 32}) {
      takt::test_rows_are_stored_as_one_by_one(takt::KVType::kBF16, head_dim, block_size);
      takt::test_rows_are_stored_as_one_by_one(takt::KVType::kInt8, head_dim, block_size);
    }
  }
  for (const auto type : {takt::KVType::kF32, takt::KVType::kFP8E4M3}) {
    takt::test_rows_are_stored_as_one_by_one(type, 64, 16);
  }
  takt::test_bytes_of_a_block();
}
