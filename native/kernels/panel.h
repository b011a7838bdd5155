// Layout of packed weights: panels of 16 rows, streamed along K from one address upwards.
//
// Float types: for each k the 16 rows' elements, in their own type. bf16: for each two columns the 16
// rows' pairs, the even column first; an odd last column is paired with 0. Magnitudes below 2^-56 are
// 0 (round_bf16.h).
//
// Quantised types: every weight is scale * (q - zero) + min with an unsigned q of `bits` bits. A
// panel is a row of blocks, one for 32 columns (or 256: the K types, whose block begins with two
// levels' upper scales); a block is a row of groups of 32 columns:
//
//   scales of the group    lane r is row r; see Scales
//   q of the group         8 vectors of 64 bytes; vector v, byte 4 r + j is row r, column 4 v + j
//
// so that one u8 x s8 dot product of 4 takes a vector with 4 activations broadcast to all rows.
// Fewer than 8 bits keep their size: first 256 bytes of nibbles, low half of vectors 0..3 and high
// half of vectors 4..7; then for 5 bits 8 x 64 bits, bit i of word v for byte i of vector v; for 6
// bits 2 x 64 bytes, bits 2 (v % 4) and up of byte i of piece v / 4 for byte i of vector v.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace takt {

inline constexpr int kPanelRows = 16;
inline constexpr int kVectorBytes = 64;  // 16 rows x 4 columns
inline constexpr int kNumQuantTypes = 11;

enum class Scales : uint8_t {
  kNone,       // float types
  kGroup,      // f16 scale[16]
  kGroupMin,   // f16 scale[16], f16 min[16]
  kSuperMin,   // block: f16 d[16], f16 dmin[16]; group: u8 sc[16], u8 m[16]:
               //   scale = d * sc and min = -(dmin * m), exact in f32
  kSuperHalf,  // block: f16 d[16]; group: s8 sc[2][16], one for each 16 columns: scale = d * sc
};

struct PanelSpec {
  int bits;
  int zero;
  Scales scales;
  int float_cols = 0;  // columns whose elements lie side by side, of float types

  constexpr bool is_float() const { return scales == Scales::kNone; }
  constexpr bool has_min() const {
    return scales == Scales::kGroupMin || scales == Scales::kSuperMin;
  }
  constexpr bool is_super() const {
    return scales == Scales::kSuperMin || scales == Scales::kSuperHalf;
  }
  constexpr int groups_per_block() const { return is_super() ? 8 : 1; }
  // Columns must be a multiple of this, but for float types.
  constexpr int block_cols() const { return is_float() ? float_cols : 32 * groups_per_block(); }
  constexpr int header_bytes() const {
    return scales == Scales::kSuperMin ? 64 : scales == Scales::kSuperHalf ? 32 : 0;
  }
  constexpr int group_scale_bytes() const { return scales == Scales::kGroupMin ? 64 : 32; }
  constexpr int group_bytes() const { return group_scale_bytes() + kVectorBytes * bits; }
  constexpr int block_bytes() const {
    return is_float() ? kPanelRows * bits / 8 * float_cols
                      : header_bytes() + groups_per_block() * group_bytes();
  }
  // Of a panel of `cols` columns; the last pair of a float type may be half empty.
  constexpr size_t panel_bytes(int64_t cols) const {
    return size_t((cols + block_cols() - 1) / block_cols()) * size_t(block_bytes());
  }
};

constexpr PanelSpec panel_spec(QuantType type) {
  switch (type) {
    case QuantType::kF32: return {32, 0, Scales::kNone, 1};
    case QuantType::kF16: return {16, 0, Scales::kNone, 1};
    case QuantType::kBF16: return {16, 0, Scales::kNone, 2};
    case QuantType::kQ4_0: return {4, 8, Scales::kGroup};
    case QuantType::kQ4_1: return {4, 0, Scales::kGroupMin};
    case QuantType::kQ5_0: return {5, 16, Scales::kGroup};
    case QuantType::kQ5_1: return {5, 0, Scales::kGroupMin};
    case QuantType::kQ8_0: return {8, 128, Scales::kGroup};
    case QuantType::kQ4_K: return {4, 0, Scales::kSuperMin};
    case QuantType::kQ5_K: return {5, 0, Scales::kSuperMin};
    case QuantType::kQ6_K: return {6, 32, Scales::kSuperHalf};
  }
  return {0, 0, Scales::kNone};
}

}  // namespace takt
