// The shared state of one step: who claimed which tile, and where each tile's result lies.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pool/announcements.h"

namespace takt {

template <class Sync>
class StepControl {
 public:
  // `max_tiles[i]` bounds the tiles of instruction i in any step.
  explicit StepControl(std::span<const int32_t> max_tiles)
      : num_tiles_(max_tiles.size()),
        first_result_(max_tiles.size()),
        counters_(std::make_unique<Counter[]>(max_tiles.size())) {
    size_t total = 0;
    for (size_t i = 0; i < max_tiles.size(); ++i) {
      first_result_[i] = total;
      total += (size_t(max_tiles[i]) + 7) & ~size_t{7};  // results of an instruction: own lines
    }
    results_ = std::make_unique<Result[]>(total);
  }

  int num_instructions() const { return int(num_tiles_.size()); }

  // Starts a step. No thread may be announced in this object's former epoch. Tiles of instruction i
  // are num_tiles[i]; instructions at or past num_tiles.size() have none.
  void reset(uint64_t epoch, std::span<const int32_t> num_tiles) {
    epoch_ = epoch;
    front_.store(0, std::memory_order_relaxed);
    num_redone_.store(0, std::memory_order_relaxed);
    for (size_t i = 0; i < num_tiles_.size(); ++i) {
      num_tiles_[i] = i < num_tiles.size() ? num_tiles[i] : 0;
      counters_[i].value.store(tag(epoch), std::memory_order_relaxed);
      for (int tile = 0; tile < num_tiles_[i]; ++tile) {
        results_[first_result_[i] + size_t(tile)].store(nullptr, std::memory_order_relaxed);
      }
    }
  }

  uint64_t epoch() const { return epoch_; }
  int num_tiles(int instruction) const { return num_tiles_[size_t(instruction)]; }

  // The next unclaimed tile, or -1. The counter holds the epoch, so that a thread which believes in
  // another step gets nothing whatever it saw before.
  int claim(uint64_t epoch, int instruction) {
    auto& counter = counters_[size_t(instruction)].value;
    uint64_t seen = counter.load(std::memory_order_seq_cst);
    for (;;) {
      const uint32_t next = uint32_t(seen);
      if ((seen & ~kNext) != tag(epoch) || int(next) >= num_tiles(instruction)) return -1;
      if (counter.compare_exchange_strong(seen, seen + 1, std::memory_order_seq_cst)) {
        return int(next);
      }
    }
  }

  // Makes `where` the result of a tile; false if another thread's result is there already.
  bool publish(int instruction, int tile, std::byte* where) {
    std::byte* none = nullptr;
    return result_word(instruction, tile)
        .compare_exchange_strong(none, where, std::memory_order_seq_cst);
  }

  // Where a tile's result lies; null until it is published.
  std::byte* result(int instruction, int tile) const {
    return result_word(instruction, tile).load(std::memory_order_seq_cst);
  }

  // All instructions before the front are complete. A hint for threads that come late: it may lag.
  int front() const { return front_.load(std::memory_order_acquire); }
  void advance_front(int instruction) {
    if (front_.load(std::memory_order_relaxed) < instruction) {
      front_.store(instruction, std::memory_order_release);
    }
  }

  // The step's threads stop before this instruction.
  int end() const { return end_.load(std::memory_order_acquire); }
  void set_end(int instruction) { end_.store(instruction, std::memory_order_release); }

  void count_redone() { num_redone_.fetch_add(1, std::memory_order_relaxed); }
  int64_t num_redone() const { return num_redone_.load(std::memory_order_relaxed); }

 private:
  using Result = typename Sync::template Atomic<std::byte*>;
  static constexpr uint64_t kNext = 0xffffffff;
  static uint64_t tag(uint64_t epoch) { return epoch << 32; }

  struct alignas(64) Counter {
    typename Sync::template Atomic<uint64_t> value{0};
  };

  Result& result_word(int instruction, int tile) const {
    return results_[first_result_[size_t(instruction)] + size_t(tile)];
  }

  uint64_t epoch_ = 0;
  typename Sync::template Atomic<int32_t> front_{0};
  typename Sync::template Atomic<int32_t> end_{0};
  typename Sync::template Atomic<int64_t> num_redone_{0};
  std::vector<int32_t> num_tiles_;
  std::vector<size_t> first_result_;
  std::unique_ptr<Counter[]> counters_;
  std::unique_ptr<Result[]> results_;
};

}  // namespace takt
