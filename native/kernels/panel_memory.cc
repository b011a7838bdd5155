#include "kernels/panel_memory.h"

#include <cstdlib>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels/activation.h"

namespace takt {
namespace {

// A pass over all weights touches each page once; on small pages it would miss the TLB on each, and
// the hardware's prefetchers stop at every one.
constexpr size_t kHugePage = size_t{2} << 20;
// Matrices below this share a slab. What no matrix takes of a slab is never touched.
constexpr size_t kSlabBytes = size_t{64} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kOwnBytes = 0;  // so that a step over the end is seen
#else
constexpr size_t kOwnBytes = kSlabBytes / 4;
#endif

PanelMemory allocate_huge(size_t bytes) {
  const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kHugePage, size));
  if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  (void)madvise(p, size, MADV_HUGEPAGE);  // a refusal is no error: small pages serve too
#endif
  return PanelMemory(p, &std::free);
}

// The slab that small matrices are taken from; it lives as long as one of them.
struct Slab {
  std::mutex mutex;
  std::weak_ptr<std::byte> memory;
  size_t used = 0;
};

}  // namespace

PanelMemory allocate_panels(size_t bytes) {
  if (bytes >= kOwnBytes) return allocate_huge(bytes);
  static Slab slab;
  const std::lock_guard lock(slab.mutex);
  PanelMemory memory = slab.memory.lock();
  if (memory == nullptr || slab.used + bytes > kSlabBytes) {
    memory = allocate_huge(kSlabBytes);
    slab.memory = memory;
    slab.used = 0;
  }
  std::byte* at = memory.get() + slab.used;
  slab.used += align64(bytes);
  return PanelMemory(std::move(memory), at);
}

}  // namespace takt
