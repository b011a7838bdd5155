#include "measure/read_bandwidth.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "measure/rate.h"
#include "program/memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace takt {
namespace {

// A share is read in whole blocks: eight loads of the widest kind are in flight.
constexpr int64_t kBlockBytes = 512;
constexpr int64_t kLeastShareBytes = 4096;
// Read between two looks at the clock, at least: small shares are read several times.
constexpr int64_t kBytesPerLook = 1 << 20;

using ReadBlocks = uint64_t (*)(const std::byte*, int64_t num_bytes);

uint64_t read_words(const std::byte* from, int64_t num_bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(from);
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < num_bytes / 8; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const std::byte* from, int64_t num_bytes) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t at = 0; at < num_bytes; at += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const auto* next = reinterpret_cast<const __m256i*>(from + at + 32 * j);
      sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(next));
    }
  }
  __m256i total = sums[0];
  for (int j = 1; j < 8; ++j) total = _mm256_xor_si256(total, sums[j]);
  return uint64_t(_mm256_extract_epi64(total, 0)) ^ uint64_t(_mm256_extract_epi64(total, 3));
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const std::byte* from,
                                                        int64_t num_bytes) {
  __m512i sums[8];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t at = 0; at < num_bytes; at += kBlockBytes) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sums[j] = _mm512_xor_si512(sums[j], _mm512_load_si512(from + at + 64 * j));
    }
  }
  __m512i total = sums[0];
  for (int j = 1; j < 8; ++j) total = _mm512_xor_si512(total, sums[j]);
  uint64_t words[8];
  _mm512_storeu_si512(words, total);
  return words[0] ^ words[7];
}
#endif

ReadBlocks widest_reader() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return &read_avx512;
  if (__builtin_cpu_supports("avx2")) return &read_avx2;
#endif
  return &read_words;
}

}  // namespace

double read_bandwidth(int64_t num_bytes, int num_threads, double seconds) {
  const int64_t share = num_bytes / std::max(num_threads, 1) / kBlockBytes * kBlockBytes;
  if (share < kLeastShareBytes) {
    throw std::invalid_argument(std::to_string(num_bytes) + " bytes for " +
                                std::to_string(num_threads) +
                                " threads: each must read 4096 at least");
  }
  const ReadBlocks read = widest_reader();
  return work_rate(num_threads, seconds, [&](int thread) -> Work {
    auto memory = std::make_shared<Memory>(size_t(share));
    auto* words = reinterpret_cast<uint64_t*>(memory->data());
    for (int64_t i = 0; i < share / 8; ++i) words[i] = uint64_t(i) * 0x9E3779B97F4A7C15u;
    const int64_t passes = std::max<int64_t>(1, kBytesPerLook / share);
    return [=, sink = uint64_t(thread)]() mutable {
      for (int64_t pass = 0; pass < passes; ++pass) {
        sink ^= read(memory->data(), share);
        // The next pass may not be taken for the same as this one.
        asm volatile("" : "+r"(sink) : : "memory");
      }
      return double(passes * share);
    };
  });
}

}  // namespace takt
