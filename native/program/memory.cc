#include "program/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace takt {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Memory::Memory(size_t bytes) {
  if (bytes == 0) return;
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  const size_t mapped = rounded + kHugePage;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = mapping;
  mapped_bytes_ = mapped;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  data_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  bytes_ = bytes;
  madvise(data_, rounded, MADV_HUGEPAGE);  // a wish: refused where the kernel has none
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

}  // namespace takt
