#include "kernels/isa.h"

#if defined(TAKT_X86_ISAS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/linear.h"

namespace takt {
namespace {

#if defined(TAKT_X86_ISAS)
constexpr std::array<const char*, kNumIsas> kNames = {"amx", "avx512_bf16", "avx512", "avx2",
                                                       "generic"};
#else
constexpr std::array<const char*, kNumIsas> kNames = {"generic"};
#endif

#if defined(TAKT_X86_ISAS)
// A process must ask the kernel for the tile registers' state, once for all of its threads; it is
// refused where a thread's signal stack is too small for it.
bool has_amx() {
  static const bool granted = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tiles, int8
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kNeeded) != kNeeded) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
}
#endif

// Index of the best build that the CPU and the operating system can run. The sets are nested, so
// every later build runs too.
int best_isa() {
#if defined(TAKT_X86_ISAS)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
                    __builtin_cpu_supports("movbe");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return has_amx() ? 0 : 1;
  if (avx512) return 2;
  return avx2 ? 3 : 4;
#else
  return 0;
#endif
}

// -1 until first use.
std::atomic<int> g_selected{-1};

}  // namespace

int isa_index() {
  int index = g_selected.load(std::memory_order_relaxed);
  if (index < 0) {
    index = best_isa();
    g_selected.store(index, std::memory_order_relaxed);
  }
  return index;
}

bool selected_isa_has_tiles() {
#if defined(TAKT_X86_ISAS)
  return isa_index() == 0;
#else
  return false;
#endif
}

std::span<const char* const> available_isas() {
  return std::span<const char* const>(kNames).subspan(size_t(best_isa()));
}

const char* selected_isa() { return kNames[size_t(isa_index())]; }

void select_isa(const char* name) {
  const int best = best_isa();
  if (name == nullptr) {
    g_selected.store(best, std::memory_order_relaxed);
    return;
  }
  for (int i = best; i < kNumIsas; ++i) {
    if (std::strcmp(name, kNames[size_t(i)]) == 0) {
      g_selected.store(i, std::memory_order_relaxed);
      return;
    }
  }
  std::string known;
  for (const char* isa : available_isas()) known += (known.empty() ? "" : ", ") + std::string(isa);
  throw std::invalid_argument("instruction set '" + std::string(name) +
                              "' is unknown or not available on this CPU; available: " + known);
}

}  // namespace takt
