// Where each thread's time in a step went, instruction by instruction; filled only on request.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace takt {

// One thread's tiles of one instruction. Times are monotonic nanoseconds, 0 without a tile.
struct InstructionTimes {
  int64_t first_start_ns;
  int64_t last_end_ns;
  int64_t busy_ns;  // in tiles; the rest until the next instruction's first tile is waiting
  int64_t num_tiles;
};
static_assert(sizeof(InstructionTimes) == 4 * sizeof(int64_t));

// Rows are written by one thread each, and read once no thread is in the step any more.
class StepProfile {
 public:
  StepProfile(int num_threads, int num_instructions)
      : num_instructions_(size_t(num_instructions)),
        // A line of its own between the rows of two threads.
        stride_(num_instructions_ + 2),
        times_(size_t(num_threads) * stride_) {}

  void clear() { times_.assign(times_.size(), {}); }

  void record(int thread, int instruction, int64_t start_ns, int64_t end_ns) {
    InstructionTimes& times = times_[size_t(thread) * stride_ + size_t(instruction)];
    if (times.num_tiles == 0) times.first_start_ns = start_ns;
    times.last_end_ns = end_ns;
    times.busy_ns += end_ns - start_ns;
    ++times.num_tiles;
  }

  // num_instructions entries.
  const InstructionTimes* row(int thread) const { return &times_[size_t(thread) * stride_]; }

  // Of the step: input taken, instructions begun, instructions done, output written.
  enum Stamp { kBegin, kRunStart, kRunEnd, kEnd, kNumStamps };
  std::array<int64_t, kNumStamps> stamps{};

 private:
  size_t num_instructions_, stride_;
  std::vector<InstructionTimes> times_;
};

}  // namespace takt
