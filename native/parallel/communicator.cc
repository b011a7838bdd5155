#include "parallel/communicator.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "parallel/compressed_sum.h"

namespace takt {

size_t Communicator::bytes(int num_ranks, size_t slot_bytes) {
  return size_t(num_ranks) * (sizeof(RankWords) + 2 * align64(slot_bytes));
}

Communicator::Communicator(std::byte* memory, const std::atomic<uint32_t>* abort, int rank,
                           int num_ranks, size_t slot_bytes, int64_t spin_ns, Payload payload)
    : Link(abort, spin_ns),
      memory_(memory),
      rank_(rank),
      num_ranks_(num_ranks),
      slot_bytes_(align64(slot_bytes)),
      payload_(payload) {
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) {
    throw std::invalid_argument("there is no rank " + std::to_string(rank) + " of " +
                                std::to_string(num_ranks));
  }
  if (memory == nullptr || uintptr_t(memory) % 64 != 0) {
    throw std::invalid_argument("a communicator's memory must be aligned to 64 bytes");
  }
}

Communicator::RankWords& Communicator::words(int rank) const {
  return reinterpret_cast<RankWords*>(memory_)[rank];
}

std::byte* Communicator::slot(int rank, uint64_t n) const {
  return memory_ + size_t(num_ranks_) * sizeof(RankWords) +
         (2 * size_t(rank) + n % 2) * slot_bytes_;
}

void Communicator::raise(SharedWord& word, uint64_t n) const {
  word.store(n, std::memory_order_seq_cst);
  for (int r = 0; r < num_ranks_; ++r) {
    if (r != rank_) words(r).bell.ring();
  }
}

bool Communicator::wait_raised(const SharedWord& word, uint64_t n) const {
  return wait_.until(words(rank_).bell,
                     [&] { return word.load(std::memory_order_seq_cst) >= n; });
}

void Communicator::publish(uint64_t n, int lane) const {
  raise(words(rank_).lanes[lane].published, n);
}

bool Communicator::wait_published(int rank, uint64_t n, int lane) const {
  return wait_raised(words(rank).lanes[lane].published, n);
}

bool Communicator::wait_all_published(uint64_t n, int lane) const {
  for (int r = 0; r < num_ranks_; ++r) {
    if (r != rank_ && !wait_published(r, n, lane)) return false;
  }
  return true;
}

void Communicator::publish_sums(uint64_t n, int lane) const {
  raise(words(rank_).lanes[lane].sums, n);
}

bool Communicator::wait_all_sums(uint64_t n, int lane) const {
  for (int r = 0; r < num_ranks_; ++r) {
    if (r != rank_ && !wait_raised(words(r).lanes[lane].sums, n)) return false;
  }
  return true;
}

bool Communicator::wait_writable(uint64_t n) const { return wait_all_published(n - 1, 0); }

bool Communicator::all_reduce(float* values, int64_t count) {
  const uint64_t n = next_transfer();
  if (!wait_writable(n)) return false;
  if (payload_ != Payload::kF32) return all_reduce_compressed(n, values, count);
  std::memcpy(slot(rank_, n), values, size_t(count) * sizeof(float));
  publish(n, 0);
  if (!wait_all_published(n, 0)) return false;
  sum_slots(*this, n, 0, count, values);
  return true;
}

bool Communicator::all_reduce_compressed(uint64_t n, float* values, int64_t count) const {
  const CompressedSum row(*this, n, 0, count);
  row.write(values);
  publish(n, 0);
  if (!wait_all_published(n, 0)) return false;
  row.sum_share(values);  // they are in the slot now
  publish_sums(n, 0);
  if (!wait_all_sums(n, 0)) return false;
  row.read(values);
  return true;
}

bool Communicator::gather(const float* values, int64_t count, float* out) {
  const uint64_t n = next_transfer();
  if (!wait_writable(n)) return false;
  std::memcpy(slot(rank_, n), values, size_t(count) * sizeof(float));
  publish(n, 0);
  if (rank_ != 0) return true;
  if (!wait_all_published(n, 0)) return false;
  for (int r = 0; r < num_ranks_; ++r) {
    std::memcpy(out + r * count, slot(r, n), size_t(count) * sizeof(float));
  }
  return true;
}

void sum_slots(const Communicator& group, uint64_t n, size_t at, int64_t count, float* out) {
  const auto part = [&](int rank) {
    return reinterpret_cast<const float*>(group.slot(rank, n) + at);
  };
  if (group.num_ranks() == 1) {
    std::memcpy(out, part(0), size_t(count) * sizeof(float));
    return;
  }
  add_row(part(0), part(1), count, out);
  for (int r = 2; r < group.num_ranks(); ++r) add_row(out, part(r), count, out);
}

}  // namespace takt
