// Waiting for another process: spin for a while, then sleep on a bell in shared memory.
//
// All words start at zero, which is how the kernel hands out shared memory.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "pool/futex.h"

namespace takt {

using SharedWord = std::atomic<uint64_t>;
static_assert(SharedWord::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// Whoever changes something that others may sleep for rings; `rings` changes only while someone
// sleeps, so that a ring is usually one load.
struct alignas(64) Bell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> num_sleepers;

  // The change before it and the look at sleepers must keep their order, as must a sleeper's entry
  // and its look at the change: all four are sequentially consistent.
  void ring() {
    if (num_sleepers.load(std::memory_order_seq_cst) == 0) return;
    rings.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all_shared(rings);
  }
};

class SharedWait {
 public:
  // `abort` is set, by whoever supervises, when a rank is gone; it need not ring. `spin_ns` 0:
  // sleep at once, for hosts with more threads than CPUs.
  SharedWait(const std::atomic<uint32_t>* abort, int64_t spin_ns)
      : abort_(abort), spin_ns_(spin_ns) {}

  bool is_aborted() const { return abort_->load(std::memory_order_relaxed) != 0; }

  // False if aborted. An abort without a ring is seen within `longest_sleep_ns`.
  template <class Condition>
  bool until(Bell& bell, Condition ready, int64_t longest_sleep_ns = kLongestSleepNs) const {
    if (ready()) return true;
    int64_t start = 0;  // of the spin, from the first look at the clock
    for (int turn = 1;; ++turn) {
      if (ready()) return true;
      if (is_aborted()) return false;
      if (may_spin(turn, start)) {
        spin_pause();
        continue;
      }
      bell.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
      if (!ready()) futex_wait_shared(bell.rings, seen, longest_sleep_ns);
      bell.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

 private:
  static constexpr int kTurnsPerLook = 16;
  static constexpr int64_t kLongestSleepNs = 2'000'000;

  // The clock costs as much as ten turns; a wait that is soon over needs none.
  bool may_spin(int turn, int64_t& start) const {
    if (spin_ns_ == 0) return false;
    if (turn % kTurnsPerLook != 0) return true;
    const int64_t now = now_ns();
    if (start == 0) start = now;
    return now - start < spin_ns_;
  }

  const std::atomic<uint32_t>* abort_;
  int64_t spin_ns_;
};

}  // namespace takt
