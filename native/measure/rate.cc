#include "measure/rate.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace takt {
namespace {

using Clock = std::chrono::steady_clock;

struct alignas(64) Share {
  double units_per_s = 0;
  std::exception_ptr error;
};

}  // namespace

double work_rate(int num_threads, double seconds, const std::function<Work(int thread)>& make) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("1 to 1024 threads can be measured, not " +
                                std::to_string(num_threads));
  }
  if (!(seconds > 0 && seconds <= 60)) {
    throw std::invalid_argument("a measurement takes up to 60 s, not " + std::to_string(seconds));
  }
  std::vector<Share> shares(static_cast<size_t>(num_threads));
  std::atomic<bool> failed{false};
  std::barrier ready(num_threads);
  const auto length = std::chrono::duration<double>(seconds);
  const auto measure = [&](int thread) {
    Share& share = shares[size_t(thread)];
    Work work;
    try {
      work = make(thread);
      work();  // clocks rise, pages and caches fill
    } catch (...) {
      share.error = std::current_exception();
      failed.store(true);
    }
    ready.arrive_and_wait();
    if (failed.load()) return;
    const auto start = Clock::now();
    double units = 0;
    std::chrono::duration<double> elapsed{0};
    while (elapsed < length) {
      units += work();
      elapsed = Clock::now() - start;
    }
    share.units_per_s = units / elapsed.count();
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(measure, t);
  measure(0);
  for (std::thread& thread : threads) thread.join();
  double total = 0;
  for (const Share& share : shares) {
    if (share.error) std::rethrow_exception(share.error);
    total += share.units_per_s;
  }
  return total;
}

}  // namespace takt
