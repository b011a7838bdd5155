// The part of a step that the pool works on now, and how a thread joins it safely however late.
#pragma once
#include <atomic>
#include <cstdint>

#include "pool/announcements.h"

namespace takt {

template <class Sync, class Step>
class Region {
 public:
  // For the thread that runs steps. The step's control must have been reset with `epoch`.
  void open(Step& step, uint64_t epoch, int first) {
    // Threads read the number before and after these: one that is late finds it changed.
    step_.store(&step, std::memory_order_seq_cst);
    epoch_.store(epoch, std::memory_order_seq_cst);
    first_.store(first, std::memory_order_seq_cst);
    number_.store(++num_opened_, std::memory_order_seq_cst);
  }

  // Nobody joins any more; threads may still be inside.
  void close() { number_.store(kNone, std::memory_order_seq_cst); }

  static constexpr uint64_t kNone = 0;
  // Differs for every region; kNone while none is open.
  uint64_t number() const { return number_.load(std::memory_order_seq_cst); }

  // Announces `thread` in the step of region `number`. Returns that step, whose memory lasts until
  // the thread leaves the announcements, or null if the region is over.
  Step* enter(int thread, uint64_t number, Announcements<Sync>& announcements, int* first) {
    Step* step = step_.load(std::memory_order_seq_cst);
    *first = first_.load(std::memory_order_seq_cst);
    announcements.enter(thread, epoch_.load(std::memory_order_seq_cst), *first, false);
    // Only now: the step may have ended, and its memory gone, before the announcement was seen.
    if (this->number() == number) return step;
    announcements.leave(thread);
    return nullptr;
  }

 private:
  template <class T>
  using Atomic = typename Sync::template Atomic<T>;

  Atomic<uint64_t> number_{kNone};
  Atomic<Step*> step_{nullptr};
  Atomic<uint64_t> epoch_{0};
  Atomic<int32_t> first_{0};
  uint64_t num_opened_ = 0;
};

}  // namespace takt
