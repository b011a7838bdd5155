#include "kernels/weighted_tokens.h"

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/token_order.h"

namespace takt {

size_t WeightedTokens::scratch_bytes(int64_t vocab_size) {
  return align64(size_t(vocab_size) * sizeof(uint64_t)) +
         align64(size_t(vocab_size) * sizeof(uint16_t));
}

// Subtraction, multiplication and conversion all round monotonically: a bin holds a contiguous
// piece of the order.
WeightedTokens::WeightedTokens(const float* x, const uint32_t* weight, int64_t vocab_size,
                               float max, float inverse_temperature, std::byte* scratch)
    : x_(x),
      weight_(weight),
      vocab_size_(vocab_size),
      keys_(reinterpret_cast<uint64_t*>(scratch)),
      bin_(reinterpret_cast<uint16_t*>(scratch + align64(size_t(vocab_size) * sizeof(uint64_t)))) {
  for (int64_t i = 0; i < vocab_size; ++i) {
    if (weight[i] == 0) {
      bin_[i] = kNoBin;
      continue;
    }
    const float distance = (max - x[i]) * inverse_temperature;
    const int bin = std::min(int(distance * float(kBinsPerUnit)), kNumBins - 1);
    bin_[i] = uint16_t(bin);
    ++bin_count_[size_t(bin)];
    bin_weight_[size_t(bin)] += weight[i];
  }
  for (size_t b = 0; b < kNumBins; ++b) {
    count_ += bin_count_[b];
    total_ += bin_weight_[b];
  }
}

int64_t WeightedTokens::collect(int bin) {
  int64_t n = 0;
  for (int64_t i = 0; i < vocab_size_; ++i) {
    if (bin_[i] == bin) keys_[n++] = token_key(x_[i], i);
  }
  return n;
}

uint64_t WeightedTokens::weight_of_first(int64_t k) {
  uint64_t before = 0;
  int bin = 0;
  for (; k > bin_count_[size_t(bin)]; ++bin) {
    k -= bin_count_[size_t(bin)];
    before += bin_weight_[size_t(bin)];
  }
  const int64_t n = collect(bin);
  if (k < n) std::nth_element(keys_, keys_ + k, keys_ + n);
  for (int64_t i = 0; i < k; ++i) before += weight_[token_of_key(keys_[i])];
  return before;
}

uint64_t WeightedTokens::weight_of_at_least(uint32_t least) const {
  uint64_t sum = 0;
  for (int64_t i = 0; i < vocab_size_; ++i) sum += weight_[i] >= least ? weight_[i] : 0;
  return sum;
}

WeightedTokens::Place WeightedTokens::find(uint64_t target) {
  uint64_t before = 0;
  int bin = 0;
  for (; before + bin_weight_[size_t(bin)] <= target; ++bin) before += bin_weight_[size_t(bin)];
  uint64_t* begin = keys_;
  uint64_t* end = keys_ + collect(bin);
  while (end - begin > 16) {  // the place lies in [begin, end); halve it
    uint64_t* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    uint64_t first_half = 0;
    for (const uint64_t* key = begin; key != middle; ++key) {
      first_half += weight_[token_of_key(*key)];
    }
    if (before + first_half > target) {
      end = middle;
    } else {
      before += first_half;
      begin = middle;
    }
  }
  std::sort(begin, end);
  for (;; ++begin) {
    before += weight_[token_of_key(*begin)];
    if (before > target) return {token_of_key(*begin), before};
  }
}

}  // namespace takt
