// A vocabulary of weighted tokens in their order, searched by running count or running weight
// without sorting it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace takt {

// Weights are integers, so that their sums are exact and no result depends on the order of adding.
// Tokens are put into bins by their logit's distance from the largest; only the bin that holds the
// place in question is looked into. Tokens of weight 0 are left out.
class WeightedTokens {
 public:
  // Scratch for `keys` below.
  static size_t scratch_bytes(int64_t vocab_size);

  // `weight[i]` belongs to token i with logit x[i] and falls with it; no x[i] is larger than max,
  // which is finite, and a weight is not 0 only where (max - x) * inverse_temperature < 22.
  WeightedTokens(const float* x, const uint32_t* weight, int64_t vocab_size, float max,
                 float inverse_temperature, std::byte* scratch);

  int64_t count() const { return count_; }
  uint64_t weight() const { return total_; }

  // Weight of the first `k` tokens, 0 < k <= count().
  uint64_t weight_of_first(int64_t k);

  // Weight of the tokens whose weight is at least `least`.
  uint64_t weight_of_at_least(uint32_t least) const;

  struct Place {
    int32_t token;
    uint64_t running_weight;  // up to and including the token
  };
  // The first token whose running weight exceeds `target` < weight().
  Place find(uint64_t target);

 private:
  static constexpr int kBinsPerUnit = 16;
  static constexpr int kNumBins = 22 * kBinsPerUnit + 1;
  static constexpr uint16_t kNoBin = 0xffff;

  // Fills `keys_` with the bin's tokens, in no order; returns their number.
  int64_t collect(int bin);

  const float* x_;
  const uint32_t* weight_;
  int64_t vocab_size_;
  int64_t count_ = 0;
  uint64_t total_ = 0;
  uint64_t* keys_;        // [vocab_size]
  uint16_t* bin_;         // [vocab_size]
  std::array<uint32_t, kNumBins> bin_count_{};
  std::array<uint64_t, kNumBins> bin_weight_{};
};

}  // namespace takt
