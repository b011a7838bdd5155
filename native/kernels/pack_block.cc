#include "kernels/pack_block.h"

#include <cstring>

namespace takt {
namespace {

constexpr int kGroupCols = int(kGroup);

uint16_t read_u16(const uint8_t* from) {
  uint16_t out;
  std::memcpy(&out, from, sizeof(out));
  return out;
}

// 16 bytes: low nibbles are columns 0..15, high ones 16..31.
void read_nibbles(const uint8_t* from, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = from[i] & 15;
    q[i + 16] = from[i] >> 4;
  }
}

// 4 bytes: bit i is the fifth bit of column i.
void add_fifth_bits(const uint8_t* from, uint8_t* q) {
  for (int i = 0; i < kGroupCols; ++i) {
    q[i] = uint8_t(q[i] | (from[i / 8] >> (i % 8) & 1) << 4);
  }
}

// 12 bytes hold 8 pairs of 6 bits: bytes 0..3 the first four scales, 4..7 the first four minima,
// 8..11 the low nibbles of the others, whose upper two bits top bytes 0..7.
void read_k_scales(const uint8_t* from, QuantBlock* block) {
  for (int g = 0; g < 4; ++g) {
    block->sc[g] = from[g] & 63;
    block->m[g] = from[4 + g] & 63;
    block->sc[4 + g] = uint8_t((from[8 + g] & 15) | from[g] >> 6 << 4);
    block->m[4 + g] = uint8_t(from[8 + g] >> 4 | from[4 + g] >> 6 << 4);
  }
}

// 128 bytes: byte i of each run of 32 holds column i of two successive groups.
void read_k_nibbles(const uint8_t* from, uint8_t* q) {
  for (int run = 0; run < 4; ++run) {
    for (int i = 0; i < kGroupCols; ++i) {
      q[64 * run + i] = from[32 * run + i] & 15;
      q[64 * run + 32 + i] = from[32 * run + i] >> 4;
    }
  }
}

// Of each 128 columns 64 bytes of nibbles and 32 of pairs of upper bits: columns c and c + 64 share
// byte c of the nibbles, columns c, c + 32, c + 64 and c + 96 share byte c of the pairs.
void read_q6(const uint8_t* from, QuantBlock* block) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* nibbles = from + 64 * half;
    const uint8_t* pairs = from + 128 + 32 * half;
    uint8_t* q = block->q + 128 * half;
    for (int run = 0; run < 4; ++run) {
      for (int i = 0; i < 32; ++i) {
        const int low = nibbles[32 * (run % 2) + i] >> (4 * (run / 2)) & 15;
        q[32 * run + i] = uint8_t(low | (pairs[i] >> (2 * run) & 3) << 4);
      }
    }
  }
  std::memcpy(block->sc, from + 192, 16);
  block->scale = read_u16(from + 208);
}

// A group's columns to lane `lane`: column 4 v + j is byte 4 lane + j of vector v (panel.h).
template <int kBits>
void write_q(const uint8_t* q, int lane, uint8_t* to) {
  for (int v = 0; v < 8; ++v) {
    for (int j = 0; j < 4; ++j) {
      const int column = 4 * v + j;
      const int byte = 4 * lane + j;
      if constexpr (kBits == 8) {
        to[64 * v + byte] = q[column];
      } else if (v < 4) {
        to[64 * v + byte] = uint8_t((q[column] & 15) | q[column + 16] << 4);
      }
      if constexpr (kBits == 5) {
        uint8_t& high = to[256 + 8 * v + byte / 8];
        high = uint8_t(high | q[column] >> 4 << (byte % 8));
      } else if constexpr (kBits == 6) {
        uint8_t& high = to[256 + 64 * (v / 4) + byte];
        high = uint8_t(high | q[column] >> 4 << (2 * (v % 4)));
      }
    }
  }
}

template <int kBits>
void read_q(const uint8_t* from, int lane, uint8_t* q) {
  for (int v = 0; v < 8; ++v) {
    for (int j = 0; j < 4; ++j) {
      const int byte = 4 * lane + j;
      uint8_t& out = q[4 * v + j];
      if constexpr (kBits == 8) {
        out = from[64 * v + byte];
      } else {
        out = from[64 * (v % 4) + byte] >> (4 * (v / 4)) & 15;
      }
      if constexpr (kBits == 5) {
        out = uint8_t(out | (from[256 + 8 * v + byte / 8] >> (byte % 8) & 1) << 4);
      } else if constexpr (kBits == 6) {
        out = uint8_t(out | (from[256 + 64 * (v / 4) + byte] >> (2 * (v % 4)) & 3) << 4);
      }
    }
  }
}

void write_group(int bits, const uint8_t* q, int lane, uint8_t* to) {
  switch (bits) {
    case 4: return write_q<4>(q, lane, to);
    case 5: return write_q<5>(q, lane, to);
    case 6: return write_q<6>(q, lane, to);
    default: return write_q<8>(q, lane, to);
  }
}

void read_group(int bits, const uint8_t* from, int lane, uint8_t* q) {
  switch (bits) {
    case 4: return read_q<4>(from, lane, q);
    case 5: return read_q<5>(from, lane, q);
    case 6: return read_q<6>(from, lane, q);
    default: return read_q<8>(from, lane, q);
  }
}

// A two-byte field of lane `lane` in an array of 16.
uint8_t* f16_of(uint8_t* array, int lane) { return array + 2 * lane; }
const uint8_t* f16_of(const uint8_t* array, int lane) { return array + 2 * lane; }

}  // namespace

void read_block(QuantType type, const std::byte* bytes, QuantBlock* block) {
  const auto* from = reinterpret_cast<const uint8_t*>(bytes);
  const bool has_min = panel_spec(type).has_min();
  // All but Q6_K begin with the scale, then the minimum.
  if (type != QuantType::kQ6_K) block->scale = read_u16(from);
  if (has_min) block->min = read_u16(from + 2);
  const uint8_t* rest = from + (has_min ? 4 : 2);
  switch (type) {
    case QuantType::kQ4_0:
    case QuantType::kQ4_1:
      read_nibbles(rest, block->q);
      break;
    case QuantType::kQ5_0:
    case QuantType::kQ5_1:
      read_nibbles(rest + 4, block->q);
      add_fifth_bits(rest, block->q);
      break;
    case QuantType::kQ8_0:
      for (int i = 0; i < kGroupCols; ++i) block->q[i] = rest[i] ^ 128;
      break;
    case QuantType::kQ4_K:
      read_k_scales(rest, block);
      read_k_nibbles(rest + 12, block->q);
      break;
    case QuantType::kQ5_K:
      // Bit g of byte i of the 32 bytes before the nibbles tops column i of group g.
      read_k_scales(rest, block);
      read_k_nibbles(rest + 44, block->q);
      for (int c = 0; c < 256; ++c) {
        const int top = rest[12 + c % 32] >> (c / 32) & 1;
        block->q[c] = uint8_t(block->q[c] | top << 4);
      }
      break;
    case QuantType::kQ6_K:
      read_q6(from, block);
      break;
    case QuantType::kF32:
    case QuantType::kF16:
    case QuantType::kBF16:
      break;
  }
}

void write_block(QuantType type, const QuantBlock& block, int lane, std::byte* bytes) {
  const PanelSpec spec = panel_spec(type);
  auto* to = reinterpret_cast<uint8_t*>(bytes);
  // The f16 scale and minimum lie first, of the block or of its only group.
  std::memcpy(f16_of(to, lane), &block.scale, 2);
  if (spec.has_min()) std::memcpy(f16_of(to + 32, lane), &block.min, 2);
  to += spec.header_bytes();
  for (int g = 0; g < spec.groups_per_block(); ++g) {
    if (spec.scales == Scales::kSuperMin) {
      to[lane] = block.sc[g];
      to[16 + lane] = block.m[g];
    } else if (spec.scales == Scales::kSuperHalf) {
      to[lane] = block.sc[2 * g];
      to[16 + lane] = block.sc[2 * g + 1];
    }
    write_group(spec.bits, block.q + kGroupCols * g, lane, to + spec.group_scale_bytes());
    to += spec.group_bytes();
  }
}

void read_lane(QuantType type, const std::byte* bytes, int lane, QuantBlock* block) {
  const PanelSpec spec = panel_spec(type);
  const auto* from = reinterpret_cast<const uint8_t*>(bytes);
  block->scale = read_u16(f16_of(from, lane));
  if (spec.has_min()) block->min = read_u16(f16_of(from + 32, lane));
  from += spec.header_bytes();
  for (int g = 0; g < spec.groups_per_block(); ++g) {
    if (spec.scales == Scales::kSuperMin) {
      block->sc[g] = from[lane];
      block->m[g] = from[16 + lane];
    } else if (spec.scales == Scales::kSuperHalf) {
      block->sc[2 * g] = from[lane];
      block->sc[2 * g + 1] = from[16 + lane];
    }
    read_group(spec.bits, from + spec.group_scale_bytes(), lane, block->q + kGroupCols * g);
    from += spec.group_bytes();
  }
}

}  // namespace takt
