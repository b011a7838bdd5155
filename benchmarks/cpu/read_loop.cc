// Reads a buffer from memory with a few threads, pass after pass: the floor of a step that reads
// as many bytes. Reads commands from standard input, one number of passes a line, and answers with
// one line of nanoseconds, one per pass, so that it can be interleaved with what is compared to it.
//
//   read_loop BYTES THREADS
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Independent sums, which the compiler turns into vectors: what binds is memory, not an addition's
// latency.
constexpr int kSums = 32;

uint64_t read_words(const uint64_t* words, size_t count) {
  uint64_t sums[kSums] = {};
  for (size_t i = 0; i + kSums <= count; i += kSums) {
    for (int j = 0; j < kSums; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

class ReadLoop {
 public:
  ReadLoop(size_t num_bytes, int num_threads) : words_(num_bytes / 8), num_threads_(num_threads) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] = i * 0x9E3779B97F4A7C15u;
    for (int t = 1; t < num_threads; ++t) threads_.emplace_back([this, t] { work(t); });
  }

  ~ReadLoop() {
    stop_.store(true);
    slice_.fetch_add(1);
    slice_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Nanoseconds of each pass; threads spin between the passes of one call and sleep between calls.
  std::vector<int64_t> run(int num_passes) {
    std::vector<int64_t> times;
    times.reserve(num_passes);
    passes_left_.store(num_passes);
    slice_.fetch_add(1);
    slice_.notify_all();
    for (int pass = 0; pass < num_passes; ++pass) {
      meet();
      const auto start = Clock::now();
      read_share(0);
      meet();
      times.push_back(std::chrono::nanoseconds(Clock::now() - start).count());
    }
    return times;
  }

  uint64_t checksum() const { return checksum_.load(); }

 private:
  void work(int thread) {
    for (uint64_t seen = 0;;) {
      slice_.wait(seen);
      seen = slice_.load();
      if (stop_.load()) return;
      const int num_passes = passes_left_.load();
      for (int pass = 0; pass < num_passes; ++pass) {
        meet();
        read_share(thread);
        meet();
      }
    }
  }

  void read_share(int thread) {
    const size_t share = words_.size() / num_threads_;
    checksum_.fetch_add(read_words(words_.data() + thread * share, share),
                        std::memory_order_relaxed);
  }

  // Returns when every thread has come. It gives the core away now and then: on a machine with
  // fewer free cores than threads a pure spin would wait for a whole scheduler slice.
  void meet() {
    const uint64_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == num_threads_) {
      arrived_.store(0);
      round_.fetch_add(1);
      return;
    }
    for (int spins = 0; round_.load() == round; ++spins) {
      if (spins % 1024 == 1023) std::this_thread::yield();
    }
  }

  std::vector<uint64_t> words_;
  const int num_threads_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> slice_{0};
  std::atomic<int> passes_left_{0};
  std::atomic<int> arrived_{0};
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> checksum_{0};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: read_loop BYTES THREADS\n");
    return 2;
  }
  ReadLoop loop(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]));
  int num_passes = 0;
  while (std::scanf("%d", &num_passes) == 1) {
    for (int64_t ns : loop.run(num_passes)) std::printf("%lld ", static_cast<long long>(ns));
    std::printf("\n");
    std::fflush(stdout);
  }
  // The sum is used, so that no read may be left out.
  return loop.checksum() == 1 ? 3 : 0;
}
