#include "pool/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace takt {

namespace {

void wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, int flags) {
  timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT | flags, expected,
          timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word, int flags) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE | flags, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) {
  wait(word, expected, timeout_ns, FUTEX_PRIVATE_FLAG);
}

void futex_wake_all(std::atomic<uint32_t>& word) { wake_all(word, FUTEX_PRIVATE_FLAG); }

void futex_wait_shared(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) {
  wait(word, expected, timeout_ns, 0);
}

void futex_wake_all_shared(std::atomic<uint32_t>& word) { wake_all(word, 0); }

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace takt
