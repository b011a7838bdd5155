// Waiting on a 32-bit word in the kernel, with a time limit.
#pragma once
#include <atomic>
#include <cstdint>

namespace takt {

// Sleeps while `word` holds `expected`, for at most `timeout_ns` (negative: for ever). May also
// return early without cause.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns);

void futex_wake_all(std::atomic<uint32_t>& word);

// The same for words in memory that several processes share.
void futex_wait_shared(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns);
void futex_wake_all_shared(std::atomic<uint32_t>& word);

// Monotonic nanoseconds.
int64_t now_ns();

// One turn of a spin loop: tells the core that it is waiting.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace takt
