// Collectives of the ranks of one host, through memory that they share.
//
// Each rank writes its part into a slot of its own and publishes; whoever needs it waits and reads.
// A rank has two slots, used in turn. Before it writes in collective n it waits until all others
// have published in n - 1: they have left n - 2 then, the last to use the slot.
#pragma once
#include <cstddef>
#include <cstdint>

#include "parallel/link.h"
#include "parallel/payload.h"

namespace takt {

class Communicator final : public Link {
 public:
  // A collective is cut into at most so many lanes, which are published one by one. Lane 0 exists
  // in every collective.
  static constexpr int kMaxLanes = 16;

  // Bytes of shared memory that a group takes.
  static size_t bytes(int num_ranks, size_t slot_bytes);

  // `memory` is 64-byte aligned and zero at first; it outlives the communicator. `payload` is what
  // sums exchange, the same on all ranks.
  Communicator(std::byte* memory, const std::atomic<uint32_t>* abort, int rank, int num_ranks,
               size_t slot_bytes, int64_t spin_ns, Payload payload = Payload::kF32);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  Payload payload() const { return payload_; }
  size_t slot_bytes() const override { return slot_bytes_; }

  // The steps of collective `n`, each false if aborted: wait_writable, write to slot(rank(), n),
  // publish a lane, wait for the others' lane, read their slots; and once more for sums, where a
  // collective has two steps.
  bool wait_writable(uint64_t n) const;
  std::byte* slot(int rank, uint64_t n) const;
  void publish(uint64_t n, int lane) const;
  bool wait_published(int rank, uint64_t n, int lane) const;
  bool wait_all_published(uint64_t n, int lane) const;
  void publish_sums(uint64_t n, int lane) const;
  bool wait_all_sums(uint64_t n, int lane) const;

  // values[i] = sum over ranks of their values[i], in the order of ranks. For callers without a
  // program; takes a number of its own. False if aborted. `count` floats fit a slot, and are a
  // multiple of kPayloadGroup if they are compressed.
  bool all_reduce(float* values, int64_t count);
  // out, on rank 0: each rank's `count` floats, one after the other; `out` is unused elsewhere.
  bool gather(const float* values, int64_t count, float* out);

 private:
  struct alignas(64) Lane {
    SharedWord published;
    SharedWord sums;
  };
  struct RankWords {
    Lane lanes[kMaxLanes];
    Bell bell;  // this rank sleeps on it
  };

  RankWords& words(int rank) const;
  void raise(SharedWord& word, uint64_t n) const;
  bool wait_raised(const SharedWord& word, uint64_t n) const;
  bool all_reduce_compressed(uint64_t n, float* values, int64_t count) const;

  std::byte* memory_;
  int rank_;
  int num_ranks_;
  size_t slot_bytes_;
  Payload payload_;
};

// out[i] = sum over ranks of the floats at `at` bytes in their slots of collective n, in the order
// of ranks, so that all ranks get the same bits.
void sum_slots(const Communicator& group, uint64_t n, size_t at, int64_t count, float* out);

}  // namespace takt
