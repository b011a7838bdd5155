// What a pool's threads did while a run lasted: computed, waited, or were kept off their CPUs.
//
// A thread is absent for the run's time less the time it was on a CPU and less the time it slept
// because it had nothing to do. What is left was not its own choice: another process had its core,
// or it had not been given one yet after it was woken. It is measured by the threads' CPU clocks,
// which the caller reads at the end of a run, one system call each; a thread that has lost its core
// need not be heard.
//
// Of the time on a CPU, what a thread did not spin away was computing: where the same work takes
// more of it than usual, memory, caches or the core's clock were slower. A thread that loses its
// core while it spins counts too much as spinning, so that computing is never overrated.
#pragma once
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace takt {

// One thread's waiting inside runs, asleep or spinning; written by it, read by a run's caller.
class IdleTime {
 public:
  void add_spin(int64_t ns) {
    if (ns <= 0) return;
    spun_ns_.store(spun() + ns, std::memory_order_relaxed);
  }
  int64_t spun() const { return spun_ns_.load(std::memory_order_relaxed); }
  // Asleep, without a sleep in progress.
  int64_t slept() const { return total_ns_.load(std::memory_order_relaxed); }

  // Asks to be woken after `limit` ns at the latest: what follows is no sleep, but a lack of a CPU.
  void begin(int64_t now, int64_t limit) {
    limit_ns_.store(limit, std::memory_order_relaxed);
    since_ns_.store(now, std::memory_order_relaxed);
  }
  void end(int64_t now) {
    total_ns_.store(total(now), std::memory_order_relaxed);
    since_ns_.store(0, std::memory_order_relaxed);
  }
  // Up to `now`, a sleep in progress counted. Off by one sleep if it ends at this very moment.
  int64_t total(int64_t now) const {
    const int64_t since = since_ns_.load(std::memory_order_relaxed);
    const int64_t limit = limit_ns_.load(std::memory_order_relaxed);
    return total_ns_.load(std::memory_order_relaxed) +
           (since > 0 ? std::min(now - since, limit) : 0);
  }

 private:
  std::atomic<int64_t> spun_ns_{0};
  std::atomic<int64_t> total_ns_{0};
  std::atomic<int64_t> since_ns_{0};
  std::atomic<int64_t> limit_ns_{0};
};

class StolenTime {
 public:
  explicit StolenTime(int num_threads) : threads_(size_t(num_threads)) {}

  // Thread 0 is whoever calls begin and end.
  void watch(int thread, pthread_t handle);

  IdleTime& idle(int thread) { return threads_[size_t(thread)].idle; }

  // Around a run, by its caller.
  void begin(int64_t now);
  void end(int64_t now);

  // Of the run that ended last, summed over the threads.
  int64_t in_run_ns() const { return in_run_ns_; }
  // On a CPU and not spinning, likewise.
  int64_t computed_ns() const { return computed_ns_; }
  // Of the caller, between the end of the run before it and its beginning. A caller that waited for
  // work meanwhile was absent by its own choice, which cannot be told from here.
  int64_t between_runs_ns() const { return between_runs_ns_; }

 private:
  struct alignas(64) Thread {
    IdleTime idle;
    clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
    bool is_watched = false;
    int64_t cpu_ns = 0;    // when the last run ended (of the caller: or began)
    int64_t slept_ns = 0;  // when this run began
    int64_t spun_ns = 0;   // likewise
  };

  void account(Thread& thread, int64_t now);

  std::vector<Thread> threads_;
  int64_t begin_ns_ = 0;
  int64_t end_ns_ = 0;
  int64_t in_run_ns_ = 0;
  int64_t computed_ns_ = 0;
  int64_t between_runs_ns_ = 0;
};

}  // namespace takt
