// Quantised blocks of a model file to lanes of a panel.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/panel.h"

namespace takt {

// A block of 32 columns (256 for the K types) of one row, its numbers as the file has them.
struct QuantBlock {
  uint16_t scale;   // f16; d of the K types
  uint16_t min;     // f16; dmin of the K types
  uint8_t sc[16];   // K types: of each group (Q6_K: each half group, signed)
  uint8_t m[8];     // K types with minima: of each group
  uint8_t q[256];   // unsigned; signed types moved up by PanelSpec::zero
};

// Bytes of block_cols() columns in the file, of one column of a float type.
constexpr int file_block_bytes(QuantType type) {
  switch (type) {
    case QuantType::kF32: return 4;
    case QuantType::kF16: return 2;
    case QuantType::kBF16: return 2;
    case QuantType::kQ4_0: return 18;
    case QuantType::kQ4_1: return 20;
    case QuantType::kQ5_0: return 22;
    case QuantType::kQ5_1: return 24;
    case QuantType::kQ8_0: return 34;
    case QuantType::kQ4_K: return 144;
    case QuantType::kQ5_K: return 176;
    case QuantType::kQ6_K: return 210;
  }
  return 0;
}

// Reads a block of a quantised type; `from` needs no alignment.
void read_block(QuantType type, const std::byte* from, QuantBlock* block);

// Writes a block into lane `lane` of a panel's block, which was zeroed before its first lane.
void write_block(QuantType type, const QuantBlock& block, int lane, std::byte* to);

// The block as write_block was given it.
void read_lane(QuantType type, const std::byte* from, int lane, QuantBlock* block);

}  // namespace takt
