// Philox 4x32-10: a counter-based generator. Source: Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011.
#pragma once
#include <array>
#include <cstdint>

namespace takt {

constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 2> key,
                                                std::array<uint32_t, 4> counter) {
  constexpr uint64_t kMultiplier[] = {0xd2511f53u, 0xcd9e8d57u};
  constexpr uint32_t kWeyl[] = {0x9e3779b9u, 0xbb67ae85u};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplier[0] * counter[0];
    const uint64_t b = kMultiplier[1] * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b),
               uint32_t(a >> 32) ^ counter[3] ^ key[1], uint32_t(a)};
    key = {key[0] + kWeyl[0], key[1] + kWeyl[1]};
  }
  return counter;
}

}  // namespace takt
