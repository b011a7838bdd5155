#include "pool/stolen_time.h"

#include <algorithm>

namespace takt {
namespace {

// 0 if the clock cannot be read: its thread has ended.
int64_t read_clock(clockid_t clock) {
  timespec t{};
  if (clock_gettime(clock, &t) != 0) return 0;
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

void StolenTime::watch(int thread, pthread_t handle) {
  Thread& t = threads_[size_t(thread)];
  t.is_watched = pthread_getcpuclockid(handle, &t.clock) == 0;
  if (t.is_watched) t.cpu_ns = read_clock(t.clock);
}

void StolenTime::begin(int64_t now) {
  Thread& caller = threads_[0];
  const int64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
  between_runs_ns_ =
      end_ns_ == 0 ? 0 : std::max<int64_t>(now - end_ns_ - (cpu - caller.cpu_ns), 0);
  caller.cpu_ns = cpu;
  for (Thread& thread : threads_) {
    thread.slept_ns = thread.idle.total(now);
    thread.spun_ns = thread.idle.spun();
  }
  begin_ns_ = now;
}

void StolenTime::end(int64_t now) {
  threads_[0].is_watched = true;
  in_run_ns_ = computed_ns_ = 0;
  for (Thread& thread : threads_) {
    if (thread.is_watched) account(thread, now);
  }
  end_ns_ = now;
}

// Others' clocks are read once a run: what they spend after one, until they park, is taken for time
// in the next. It is at most some tens of microseconds, in their favour.
void StolenTime::account(Thread& thread, int64_t now) {
  const int64_t cpu = read_clock(thread.clock);
  const int64_t worked = cpu - thread.cpu_ns;
  const int64_t slept = thread.idle.total(now) - thread.slept_ns;
  const int64_t spun = thread.idle.spun() - thread.spun_ns;
  thread.cpu_ns = cpu;
  in_run_ns_ += std::max<int64_t>(now - begin_ns_ - worked - slept, 0);
  computed_ns_ += std::max<int64_t>(worked - spun, 0);
}

}  // namespace takt
