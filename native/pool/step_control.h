// The shared state of one step: who claimed which tile, and where each tile's result lies.
#pragma once
#include <algorithm>
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
  StepControl(std::span<const int32_t> max_tiles, int num_threads)
      : num_segments_(std::clamp(num_threads, 1, kMaxSegments)),
        num_tiles_(max_tiles.size()),
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
      for (int s = 0; s < num_segments_; ++s) {
        counters_[i].taken[s].store(tag(epoch), std::memory_order_relaxed);
      }
      for (int tile = 0; tile < num_tiles_[i]; ++tile) {
        results_[first_result_[i] + size_t(tile)].store(nullptr, std::memory_order_relaxed);
      }
    }
  }

  uint64_t epoch() const { return epoch_; }
  int num_tiles(int instruction) const { return num_tiles_[size_t(instruction)]; }

  // An instruction's tiles are cut into segments of neighbours, and each thread begins with one of
  // its own: it reads memory straight on from tile to tile and knows where it will read next.
  int num_segments() const { return num_segments_; }
  int segment_of_thread(int thread) const { return thread % num_segments_; }
  int first_tile(int instruction, int segment) const {
    return int(int64_t{num_tiles(instruction)} * segment / num_segments_);
  }
  int segment_of_tile(int instruction, int tile) const {
    int segment = 0;
    while (first_tile(instruction, segment + 1) <= tile) ++segment;
    return segment;
  }

  // An unclaimed tile, of the thread's own segment while there is one; or -1. Counters hold the
  // epoch, so that a thread which believes in another step gets nothing whatever it saw before.
  int claim(uint64_t epoch, int instruction, int thread) {
    for (int k = 0; k < num_segments_; ++k) {
      const int segment = segment_of_thread(thread + k);
      const int first = first_tile(instruction, segment);
      const int size = first_tile(instruction, segment + 1) - first;
      auto& taken = counters_[size_t(instruction)].taken[segment];
      uint64_t seen = taken.load(std::memory_order_seq_cst);
      for (;;) {
        const uint32_t next = uint32_t(seen);
        if ((seen & ~kNext) != tag(epoch) || int(next) >= size) break;
        if (taken.compare_exchange_strong(seen, seen + 1, std::memory_order_seq_cst)) {
          return first + int(next);
        }
      }
    }
    return -1;
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
  static constexpr int kMaxSegments = 8;  // whose counters fill a cache line
  static constexpr uint64_t kNext = 0xffffffff;
  static uint64_t tag(uint64_t epoch) { return epoch << 32; }

  struct alignas(64) Counter {
    typename Sync::template Atomic<uint64_t> taken[kMaxSegments] = {};
  };

  Result& result_word(int instruction, int tile) const {
    return results_[first_result_[size_t(instruction)] + size_t(tile)];
  }

  const int num_segments_;
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
