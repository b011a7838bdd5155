#include "measure/all_reduce_cost.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "parallel/communicator.h"
#include "pool/futex.h"
#include "program/memory.h"

namespace takt {
namespace {

constexpr int64_t kSpinNs = 200'000;
constexpr int kWarmUpRounds = 5;

void check(const std::vector<int>& cpus, int64_t num_values, int num_rounds) {
  if (cpus.size() < 2) throw std::invalid_argument("an all-reduce needs two CPUs at least");
  if (num_values < 1 || num_values % kPayloadGroup != 0) {
    throw std::invalid_argument("an all-reduce is measured with a positive multiple of 32 values");
  }
  if (num_rounds < 1) throw std::invalid_argument("one round at least is measured");
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) {
      throw std::invalid_argument("this process may not run on CPU " + std::to_string(cpu));
    }
  }
}

void pin_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

// Times of all rounds, as a rank sees them.
std::vector<double> times_of_rank(Communicator& group, int64_t num_values, int num_rounds) {
  std::vector<float> source(static_cast<size_t>(num_values)), values(source.size());
  for (size_t i = 0; i < source.size(); ++i) source[i] = float(int(i % 251)) - 125.0f;
  std::vector<double> times;
  times.reserve(size_t(num_rounds));
  for (int round = -kWarmUpRounds; round < num_rounds; ++round) {
    // Sums of sums would soon be infinite. All ranks copy at the same time, outside of the clock.
    std::copy(source.begin(), source.end(), values.begin());
    const int64_t start = now_ns();
    group.all_reduce(values.data(), num_values);
    if (round >= 0) times.push_back(double(now_ns() - start));
  }
  return times;
}

}  // namespace

double all_reduce_ns(const std::vector<int>& cpus, Payload payload, int64_t num_values,
                     int num_rounds) {
  check(cpus, num_values, num_rounds);
  const int num_ranks = int(cpus.size());
  const size_t slot_bytes = size_t(num_values) * sizeof(float);
  const Memory memory(Communicator::bytes(num_ranks, slot_bytes));
  const std::atomic<uint32_t> abort{0};
  std::vector<double> times;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      pin_to(cpus[size_t(rank)]);
      Communicator group(memory.data(), &abort, rank, num_ranks, slot_bytes, kSpinNs, payload);
      std::vector<double> own = times_of_rank(group, num_values, num_rounds);
      if (rank == 0) times = std::move(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::nth_element(times.begin(), times.begin() + num_rounds / 2, times.end());
  return times[size_t(num_rounds) / 2];
}

}  // namespace takt
