// A one-way connection of two ranks of one host: a ring of slots in memory that they share.
#pragma once
#include <cstddef>
#include <cstdint>

#include "parallel/link.h"

namespace takt {

class Channel final : public Link {
 public:
  static size_t bytes(int num_slots, size_t slot_bytes);

  // `memory` is 64-byte aligned and zero at first; it outlives the channel. One process sends and
  // one receives.
  Channel(std::byte* memory, const std::atomic<uint32_t>* abort, int num_slots, size_t slot_bytes,
          int64_t spin_ns);

  size_t slot_bytes() const override { return slot_bytes_; }

  // Transfer n of the sender: wait_free, write to slot(n), publish. Of the receiver:
  // wait_published, read slot(n), release. Waits are false if aborted.
  bool wait_free(uint64_t n) const;
  void publish(uint64_t n) const;
  bool wait_published(uint64_t n) const;
  void release(uint64_t n) const;
  std::byte* slot(uint64_t n) const;

  // For callers without a program; both take a number of their own. False if aborted.
  bool send(const float* values, int64_t count);
  bool receive(float* values, int64_t count);

 private:
  struct Words {
    alignas(64) SharedWord published;  // transfers written
    alignas(64) SharedWord released;   // transfers read
    Bell receiver;
    Bell sender;
  };

  Words& words() const { return *reinterpret_cast<Words*>(memory_); }

  std::byte* memory_;
  uint64_t num_slots_;
  size_t slot_bytes_;
};

}  // namespace takt
