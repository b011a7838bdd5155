// What counts as stolen: neither work nor sleep of one's own, but whatever else keeps a thread away.
#include "pool/stolen_time.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "pool/futex.h"
#include "tests/check.h"

namespace takt::test {
namespace {

constexpr int64_t kMs = 1'000'000;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void nap(IdleTime& sleep, int ms) {
  sleep.begin(now_ns(), 1000 * kMs);
  sleep_ms(ms);
  sleep.end(now_ns());
}

// A caller that blocks without saying so was absent all that time; one that says so was not.
void absence_of_the_caller() {
  StolenTime stolen(1);
  stolen.begin(now_ns());
  sleep_ms(20);
  stolen.end(now_ns());
  CHECK(stolen.in_run_ns() >= 19 * kMs);

  const int64_t begin = now_ns();
  stolen.begin(begin);
  nap(stolen.idle(0), 20);
  const int64_t end = now_ns();
  stolen.end(end);
  // At most what the thread waited for a core after its nap: all but the nap itself.
  CHECK(stolen.in_run_ns() <= end - begin - 20 * kMs);
}

void absence_between_runs() {
  StolenTime stolen(1);
  stolen.begin(now_ns());
  CHECK(stolen.between_runs_ns() == 0);  // nothing ran before
  stolen.end(now_ns());
  sleep_ms(20);
  stolen.begin(now_ns());
  CHECK(stolen.between_runs_ns() >= 19 * kMs);
}

// A thread that never comes is absent for the whole run, and is not asked.
void absence_of_another() {
  std::atomic<bool> ends{false};
  std::thread away([&] {
    while (!ends.load()) sleep_ms(1);
  });
  StolenTime stolen(2);
  stolen.watch(1, away.native_handle());
  stolen.begin(now_ns());
  const int64_t begin = now_ns();
  while (now_ns() - begin < 30 * kMs) spin_pause();
  stolen.end(now_ns());
  CHECK(stolen.in_run_ns() >= 20 * kMs);
  ends.store(true);
  away.join();
}

// A sleep that has not ended yet is known to be one.
void sleep_in_progress() {
  StolenTime stolen(1);
  const int64_t before = now_ns();
  stolen.begin(now_ns());
  const int64_t asleep = now_ns();
  stolen.idle(0).begin(asleep, 1000 * kMs);
  sleep_ms(20);
  stolen.end(now_ns());
  CHECK(stolen.in_run_ns() <= asleep - before);
}

// Whoever asked for 5 ms and comes back after 20 had no CPU for 15.
void sleep_beyond_its_limit() {
  StolenTime stolen(1);
  stolen.begin(now_ns());
  stolen.idle(0).begin(now_ns(), 5 * kMs);
  sleep_ms(20);
  stolen.idle(0).end(now_ns());
  stolen.end(now_ns());
  CHECK(stolen.in_run_ns() >= 14 * kMs);
}

// Time on a CPU is computing, but for what was spun away. A CPU clock and the wall clock may differ
// in rate and in when they were last brought up to date.
void computing() {
  constexpr int64_t kClocksDiffer = 10 * kMs;
  StolenTime stolen(1);
  const int64_t begin = now_ns();
  stolen.begin(begin);
  while (now_ns() - begin < 20 * kMs) spin_pause();
  stolen.end(now_ns());
  const int64_t whole = stolen.computed_ns();
  CHECK(whole > 0);
  CHECK(whole <= now_ns() - begin + kClocksDiffer);

  stolen.begin(now_ns());
  stolen.idle(0).add_spin(1000 * kMs);
  stolen.idle(0).add_spin(-1);  // the clock was looked at before a sleep
  stolen.end(now_ns());
  CHECK(stolen.computed_ns() == 0);
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  absence_of_the_caller();
  absence_between_runs();
  absence_of_another();
  sleep_in_progress();
  sleep_beyond_its_limit();
  computing();
  std::puts("ok");
}
