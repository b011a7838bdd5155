// Slow reference of the storage types and of products with them, in double, one element at a time
// straight from the file's bytes. It shares no code with the kernels.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/round_bf16.h"

namespace takt::test {

inline constexpr QuantType kAllTypes[] = {
    QuantType::kF32,  QuantType::kF16,  QuantType::kBF16, QuantType::kQ4_0,
    QuantType::kQ4_1, QuantType::kQ5_0, QuantType::kQ5_1, QuantType::kQ8_0,
    QuantType::kQ4_K, QuantType::kQ5_K, QuantType::kQ6_K};

inline bool is_float_type(QuantType type) { return int(type) <= int(QuantType::kBF16); }

struct FileFormat {
  int cols;   // of a block
  int bytes;  // of a block
};

inline FileFormat file_format(QuantType type) {
  constexpr FileFormat kFormats[] = {{1, 4},   {1, 2},   {1, 2},    {32, 18},   {32, 20},  {32, 22},
                                     {32, 24}, {32, 34}, {256, 144}, {256, 176}, {256, 210}};
  return kFormats[int(type)];
}

inline double half_value(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24)
                                         : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// Scale and minimum of group g of a Q4_K or Q5_K block: 6 bits each out of 12 bytes.
inline void k_scale_min(const uint8_t* p, int g, int* scale, int* min) {
  if (g < 4) {
    *scale = p[g] & 63;
    *min = p[g + 4] & 63;
  } else {
    *scale = (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
    *min = (p[g + 4] >> 4) | (p[g] >> 6) << 4;
  }
}

// A weight is the sum of two terms; types without minima have the first alone.
struct Terms {
  double scaled;
  double min = 0;
};

// A block of a float type.
inline double float_value(QuantType type, const uint8_t* p) {
  if (type == QuantType::kF16) return half_value(p);
  const uint8_t widened[4] = {0, 0, p[0], p[1]};
  float x;
  std::memcpy(&x, type == QuantType::kF32 ? p : widened, 4);
  return double(x);
}

// Element c of a block.
inline Terms block_terms(QuantType type, const uint8_t* p, int c) {
  const auto nibble = [c](const uint8_t* q) { return c < 16 ? q[c] & 15 : q[c - 16] >> 4; };
  const auto bit = [c](const uint8_t* b) { return b[c / 8] >> (c % 8) & 1; };
  const auto k_nibble = [c](const uint8_t* q) {
    return q[32 * (c / 64) + c % 32] >> (c / 32 % 2 * 4) & 15;
  };
  int scale = 0;
  int min = 0;
  switch (type) {
    case QuantType::kF32:
    case QuantType::kF16:
    case QuantType::kBF16: return {float_value(type, p)};
    case QuantType::kQ4_0: return {half_value(p) * (nibble(p + 2) - 8)};
    case QuantType::kQ4_1: return {half_value(p) * nibble(p + 4), half_value(p + 2)};
    case QuantType::kQ5_0: return {half_value(p) * (nibble(p + 6) + 16 * bit(p + 2) - 16)};
    case QuantType::kQ5_1:
      return {half_value(p) * (nibble(p + 8) + 16 * bit(p + 4)), half_value(p + 2)};
    case QuantType::kQ8_0: return {half_value(p) * int8_t(p[2 + c])};
    case QuantType::kQ4_K:
      k_scale_min(p + 4, c / 32, &scale, &min);
      return {half_value(p) * scale * k_nibble(p + 16), -half_value(p + 2) * min};
    case QuantType::kQ5_K: {
      k_scale_min(p + 4, c / 32, &scale, &min);
      const int top = p[16 + c % 32] >> (c / 32) & 1;
      return {half_value(p) * scale * (k_nibble(p + 48) + 16 * top), -half_value(p + 2) * min};
    }
    case QuantType::kQ6_K: {
      const int low = p[64 * (c / 128) + c % 64] >> (c % 128 / 64 * 4) & 15;
      const int high = p[128 + 32 * (c / 128) + c % 32] >> (c % 128 / 32 * 2) & 3;
      return {half_value(p + 208) * int8_t(p[192 + c / 16]) * (low + 16 * high - 32)};
    }
  }
  return {};
}

// A matrix of random bytes whose scales are ordinary numbers.
struct RandomMatrix {
  QuantType type;
  int64_t rows;
  int64_t cols;
  std::vector<uint8_t> raw;

  RandomMatrix(QuantType type, int64_t rows, int64_t cols, std::mt19937& rng)
      : type(type), rows(rows), cols(cols) {
    const FileFormat format = file_format(type);
    const int64_t num_blocks = rows * cols / format.cols;
    raw.resize(size_t(num_blocks * format.bytes));
    for (uint8_t& byte : raw) byte = uint8_t(rng());
    // The top byte of a half between 2^-10 and 2^-6, of either sign.
    const auto half_top = [&] { return uint8_t((rng() & 0x80) | (20 + rng() % 15)); };
    for (int64_t b = 0; b < num_blocks; ++b) {
      uint8_t* p = raw.data() + b * format.bytes;
      if (type == QuantType::kF32) {
        const float x = std::normal_distribution<float>()(rng);
        std::memcpy(p, &x, 4);
      } else if (type == QuantType::kBF16) {
        p[1] = uint8_t((rng() & 0x80) | 0x3e);
      } else if (type == QuantType::kQ6_K) {
        p[209] = half_top();
      } else {
        p[1] = half_top();
        const bool has_min = type != QuantType::kF16 && type != QuantType::kQ4_0 &&
                             type != QuantType::kQ5_0 && type != QuantType::kQ8_0;
        if (has_min) p[3] = half_top();
      }
    }
  }

  RawMatrix view() const {
    return {reinterpret_cast<const std::byte*>(raw.data()), type, rows, cols};
  }

  Terms terms(int64_t row, int64_t col) const {
    const FileFormat format = file_format(type);
    const int64_t block = (row * cols + col) / format.cols;
    return block_terms(type, raw.data() + block * format.bytes, int(col % format.cols));
  }
  // Exact: the terms of halves and small integers have far fewer than 53 bits.
  double at(int64_t row, int64_t col) const {
    const Terms t = terms(row, col);
    return t.scaled + t.min;
  }
};

// Random rows of activations, plain and quantised by the kernels under test.
struct RandomRows {
  int64_t k;
  std::vector<std::vector<float>> f32;
  std::vector<std::byte> memory;
  std::vector<Q8Row> q8;
  std::vector<const float*> f32_rows;
  std::vector<uint16_t> bf16;
  std::vector<const uint16_t*> bf16_rows;  // equally far apart

  // The int8 form is made where k is a multiple of 32.
  RandomRows(int m, int64_t k, std::mt19937& rng) : k(k), f32(size_t(m)) {
    for (auto& row : f32) {
      row.resize(size_t(k));
      // Groups of unlike magnitudes, some all zero.
      for (int64_t i = 0; i < k; ++i) {
        const float size = float((i / 32 + 1) % 5) * std::exp2(float(i / 32 % 7) - 3.0f);
        row[size_t(i)] = size * std::normal_distribution<float>()(rng);
      }
      f32_rows.push_back(row.data());
    }
    const int64_t stride = bf16_row_elements(k);
    bf16.assign(size_t(m * stride), uint16_t{0xa5a5});
    for (int i = 0; i < m; ++i) {
      uint16_t* to = bf16.data() + i * stride;
      round_row_to_bf16(f32[size_t(i)].data(), k, to);
      bf16_rows.push_back(to);
    }
    if (k % 32 == 0) quantize();
  }

  void quantize() {
    const size_t bytes = q8_row_bytes(k);
    memory.assign(bytes * f32.size() + 64, std::byte{0xa5});
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    auto* at = memory.data() + ((64 - address % 64) % 64);
    q8.clear();
    for (const auto& row : f32) {
      quantize_row(row.data(), k, at);
      q8.push_back(q8_row_at(at, k));
      at += bytes;
    }
  }

  // Quantised weights take the first `num_q8` as q8 rows.
  ActivationRows view(int m, int num_q8) const {
    return {q8.data(), f32_rows.data(), bf16_rows.data(), m, num_q8};
  }
  ActivationRows view(int m) const { return view(m, m); }

  double bf16_at(int row, int64_t col) const {
    const uint16_t bits = bf16_rows[size_t(row)][col];
    const uint8_t bytes[2] = {uint8_t(bits), uint8_t(bits >> 8)};
    return float_value(QuantType::kBF16, bytes);
  }

  // The activation a product with weights of `type` takes, of quantised ones the int8 form.
  double at(QuantType type, int row, int64_t col) const {
    if (type == QuantType::kBF16) return bf16_at(row, col);
    if (is_float_type(type)) return double(f32[size_t(row)][size_t(col)]);
    const Q8Row& r = q8[size_t(row)];
    return double(r.scale[col / 32]) * r.q[col];
  }
};

}  // namespace takt::test
