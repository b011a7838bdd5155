// AMX's tile registers and instructions. The compiler's own names for these take nothing but
// literals and hide from it that they touch memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/lanes.h"

namespace takt::TAKT_ISA {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// The unit renames no register: a load into one waits for the product that reads it. So steps take
// turns with two sets.
enum Tile { kSumsA, kSumsB, kRowsOfXA, kRowsOfXB, kWeightsA, kWeightsB };

template <Tile kTile>
TAKT_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <Tile kTile>
TAKT_INLINE void load_tile(const void* from, size_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <Tile kTile>
TAKT_INLINE void store_tile(void* to, size_t stride = kTileRowBytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}
// Sums of s8 rows of x times u8 weights.
template <Tile kSums, Tile kX, Tile kWeights>
TAKT_INLINE void add_tile_products() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
}
// Sums of bf16 rows of x times bf16 weights: a row's pairs are summed in two fused chains, of the
// even and of the odd elements, which are added to each other and then to the sum before.
template <Tile kSums, Tile kX, Tile kWeights>
TAKT_INLINE void add_bf16_tile_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
}

// What LDTILECFG reads: palette 1, and the rows and bytes of a row of each register.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TAKT_INLINE void set(Tile tile, int num_rows, int bytes) {
    rows[tile] = uint8_t(num_rows);
    row_bytes[tile] = uint16_t(bytes);
  }
  TAKT_INLINE void load() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
};

// For products of `num_rows` rows of x by `columns` columns.
TAKT_INLINE void configure_tiles(int num_rows, int columns) {
  alignas(64) TileConfig config;
  for (const Tile tile : {kSumsA, kSumsB}) config.set(tile, num_rows, kTileRowBytes);
  for (const Tile tile : {kRowsOfXA, kRowsOfXB}) config.set(tile, num_rows, columns);
  for (const Tile tile : {kWeightsA, kWeightsB}) config.set(tile, columns / 4, kTileRowBytes);
  config.load();
}

TAKT_INLINE void release_tiles() { asm volatile("tilerelease"); }

}  // namespace takt::TAKT_ISA
