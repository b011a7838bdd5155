// A counter in shared memory that one process raises and others wait for.
#pragma once
#include <cstddef>
#include <cstdint>

#include "parallel/shared_wait.h"

namespace takt {

class Signal {
 public:
  static constexpr size_t bytes() { return sizeof(Words); }

  // `memory` is 64-byte aligned and zero at first; it outlives the signal.
  Signal(std::byte* memory, const std::atomic<uint32_t>* abort, int64_t spin_ns)
      : words_(reinterpret_cast<Words*>(memory)), wait_(abort, spin_ns) {}

  void post(uint64_t value) {
    words_->value.store(value, std::memory_order_seq_cst);
    words_->bell.ring();
  }
  // Wakes all that wait, so that they look at the abort word.
  void wake() { words_->bell.ring(); }

  // Until the counter is at least `value`; false if aborted.
  bool wait(uint64_t value) const {
    return wait_.until(
        words_->bell, [&] { return words_->value.load(std::memory_order_seq_cst) >= value; },
        kLongestSleepNs);
  }

 private:
  struct Words {
    alignas(64) SharedWord value;
    Bell bell;
  };
  // Idle ranks wait here, and must cost nothing: whoever aborts wakes them.
  static constexpr int64_t kLongestSleepNs = 1'000'000'000;

  Words* words_;
  SharedWait wait_;
};

}  // namespace takt
