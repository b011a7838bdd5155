#include "parallel/channel.h"

#include <cstring>
#include <stdexcept>

#include "kernels/activation.h"

namespace takt {

size_t Channel::bytes(int num_slots, size_t slot_bytes) {
  return sizeof(Words) + size_t(num_slots) * align64(slot_bytes);
}

Channel::Channel(std::byte* memory, const std::atomic<uint32_t>* abort, int num_slots,
                 size_t slot_bytes, int64_t spin_ns)
    : Link(abort, spin_ns),
      memory_(memory),
      num_slots_(uint64_t(num_slots)),
      slot_bytes_(align64(slot_bytes)) {
  if (num_slots < 1) throw std::invalid_argument("a channel needs a slot");
  if (memory == nullptr || uintptr_t(memory) % 64 != 0) {
    throw std::invalid_argument("a channel's memory must be aligned to 64 bytes");
  }
}

std::byte* Channel::slot(uint64_t n) const {
  return memory_ + sizeof(Words) + size_t(n % num_slots_) * slot_bytes_;
}

bool Channel::wait_free(uint64_t n) const {
  return wait_.until(words().sender, [&] {
    return words().released.load(std::memory_order_seq_cst) + num_slots_ >= n;
  });
}

void Channel::publish(uint64_t n) const {
  words().published.store(n, std::memory_order_seq_cst);
  words().receiver.ring();
}

bool Channel::wait_published(uint64_t n) const {
  return wait_.until(words().receiver, [&] {
    return words().published.load(std::memory_order_seq_cst) >= n;
  });
}

void Channel::release(uint64_t n) const {
  words().released.store(n, std::memory_order_seq_cst);
  words().sender.ring();
}

bool Channel::send(const float* values, int64_t count) {
  const uint64_t n = next_transfer();
  if (!wait_free(n)) return false;
  std::memcpy(slot(n), values, size_t(count) * sizeof(float));
  publish(n);
  return true;
}

bool Channel::receive(float* values, int64_t count) {
  const uint64_t n = next_transfer();
  if (!wait_published(n)) return false;
  std::memcpy(values, slot(n), size_t(count) * sizeof(float));
  release(n);
  return true;
}

}  // namespace takt
