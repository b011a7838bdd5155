// Peak of u8 x s8 products summed into 32 bits, from registers alone, on a number of threads.
// Prints operations per second (two per product), or 0 where the CPU has no such instruction.
//
//   vnni_peak THREADS SECONDS
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

namespace {

// Products in flight: enough to fill two units of five cycles' latency.
constexpr int kChains = 12;
constexpr int kRounds = 4096;

#if defined(__AVX512VNNI__)
constexpr int kProductsPerInstruction = 64;
using Vector = __m512i;
Vector broadcast(int value) { return _mm512_set1_epi32(value); }
Vector multiply_add(Vector sum, Vector a, Vector b) { return _mm512_dpbusd_epi32(sum, a, b); }
#elif defined(__AVXVNNI__)
constexpr int kProductsPerInstruction = 32;
using Vector = __m256i;
Vector broadcast(int value) { return _mm256_set1_epi32(value); }
Vector multiply_add(Vector sum, Vector a, Vector b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#else
constexpr int kProductsPerInstruction = 0;
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
int any_of(Vector v) {
  int first;
  std::memcpy(&first, &v, sizeof(first));
  return first;
}

// Instructions done until `stop`.
uint64_t multiply_until(const std::atomic<bool>& stop, std::atomic<int>& sink) {
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = broadcast(i);
  Vector a = broadcast(0x01020304), b = broadcast(0x04030201);
  uint64_t count = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
      for (int i = 0; i < kChains; ++i) sums[i] = multiply_add(sums[i], a, b);
    }
    count += uint64_t(kRounds) * kChains;
  }
  for (const Vector& sum : sums) sink.fetch_xor(any_of(sum));
  return count;
}
#else
uint64_t multiply_until(const std::atomic<bool>&, std::atomic<int>&) { return 0; }
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: vnni_peak THREADS SECONDS\n");
    return 2;
  }
  const int num_threads = std::atoi(argv[1]);
  if (kProductsPerInstruction == 0) {
    std::printf("0\n");
    return 0;
  }
  std::atomic<bool> stop{false};
  std::atomic<int> sink{0};
  std::atomic<uint64_t> count{0};
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&] { count += multiply_until(stop, sink); });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(argv[2])));
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%.6g\n", double(count.load()) * 2 * kProductsPerInstruction / seconds);
  return sink.load() == 1 ? 3 : 0;
}
