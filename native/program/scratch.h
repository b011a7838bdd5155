// A thread's working memory while it runs one tile; its content means nothing afterwards.
#pragma once
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"

namespace takt {

class Scratch {
 public:
  Scratch(std::byte* begin, size_t bytes) : next_(begin), end_(begin + bytes) {}

  // `n` elements on a 64-byte border.
  template <class T>
  T* take(int64_t n) {
    std::byte* taken = next_;
    next_ += align64(size_t(n) * sizeof(T));
    assert(next_ <= end_);
    return reinterpret_cast<T*>(taken);
  }

  // Bytes that take<T>(n) uses.
  template <class T>
  static constexpr size_t bytes(int64_t n) {
    return align64(size_t(n) * sizeof(T));
  }

 private:
  std::byte* next_;
  [[maybe_unused]] std::byte* end_;
};

}  // namespace takt
