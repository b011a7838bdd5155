// How pool threads wait inside a step: spin for a while, then sleep in the kernel.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "pool/futex.h"
#include "pool/stolen_time.h"
#include "pool/walk.h"

namespace takt {

// Words that all threads of a pool share for waiting.
struct WaitState {
  alignas(64) std::atomic<uint32_t> progress{0};  // changes when a sleeper should look again
  std::atomic<int64_t> notified_ns{0};            // when it last did
  alignas(64) std::atomic<uint32_t> num_sleepers{0};
  alignas(64) std::atomic<uint32_t> abort{0};  // not 0: every wait ends
};

class PoolWait {
 public:
  // `spin_ns` 0: sleep at once, for pools with more threads than CPUs.
  // What is waited is noted in `idle`.
  PoolWait(WaitState& state, int64_t spin_ns, IdleTime& idle)
      : state_(state), spin_ns_(spin_ns), idle_(idle) {}

  static int64_t now() { return now_ns(); }

  template <class Condition>
  Waited until(Condition ready, int64_t timeout_ns) {
    const int64_t start = now_ns();
    const int64_t slept = idle_.slept();
    int64_t waited = 0;  // when the clock was last looked at: short waits count as none
    const Waited result = wait(ready, timeout_ns, start, waited);
    idle_.add_spin(waited - (idle_.slept() - slept));
    return result;
  }

  void notify() {
    if (state_.num_sleepers.load(std::memory_order_seq_cst) == 0) return;
    state_.notified_ns.store(now_ns(), std::memory_order_relaxed);
    state_.progress.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(state_.progress);
  }

 private:
  template <class Condition>
  Waited wait(Condition& ready, int64_t timeout_ns, int64_t start, int64_t& waited) {
    for (int turn = 1;; ++turn) {
      if (ready()) return Waited::kReady;
      if (state_.abort.load(std::memory_order_relaxed) != 0) return Waited::kAborted;
      // The clock costs as much as ten turns; look at it now and then.
      if (turn % kTurnsPerLook != 0 && spin_ns_ > 0) {
        spin_pause();
        continue;
      }
      waited = now_ns() - start;
      if (timeout_ns >= 0 && waited >= timeout_ns) return Waited::kTimeout;
      if (waited < spin_ns_) continue;
      const int64_t left = timeout_ns < 0 ? kLongestSleepNs : timeout_ns - waited;
      sleep(ready, std::min(left, kLongestSleepNs));
    }
  }

  template <class Condition>
  void sleep(Condition ready, int64_t timeout_ns) {
    state_.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = state_.progress.load(std::memory_order_seq_cst);
    if (!ready()) {
      const int64_t asleep = now_ns();
      idle_.begin(asleep, timeout_ns);
      futex_wait(state_.progress, seen, timeout_ns);
      // From being woken to being here, it had no CPU.
      const int64_t notified = state_.notified_ns.load(std::memory_order_relaxed);
      idle_.end(notified > asleep ? notified : now_ns());
    }
    state_.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  static constexpr int kTurnsPerLook = 16;
  // The abort word may be set by someone who does not wake sleepers.
  static constexpr int64_t kLongestSleepNs = 2'000'000;

  WaitState& state_;
  const int64_t spin_ns_;
  IdleTime& idle_;
};

}  // namespace takt
