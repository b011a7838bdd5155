// Pages from the kernel: zero until touched, and costing nothing until then.
#pragma once
#include <cstddef>
#include <utility>

namespace takt {

class Memory {
 public:
  Memory() = default;
  // At least `bytes` bytes, 2 MiB aligned, on huge pages where the kernel gives them. Throws
  // std::bad_alloc if there is no address space left.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace takt
