// Random numbers that are the same everywhere.
#pragma once
#include <cstdint>

namespace takt::test {

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n).
  int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }
  // Uniform in [low, high).
  float between(float low, float high) {
    return low + (high - low) * float(double(bits() >> 11) * 0x1p-53);
  }

 private:
  uint64_t state_;
};

}  // namespace takt::test
