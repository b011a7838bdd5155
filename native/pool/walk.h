// One thread's way through the instructions of a step.
//
// Threads claim tiles of an instruction until none is left, then wait until all are published. A
// tile that stays unpublished too long (its thread has probably lost its core) is executed again
// into private staging; whoever publishes first wins, and nothing is ever copied.
//
// Template parameters, so that the model checker runs this very code:
//   Sync  the shared words.
//   Step  what to run:
//     int reuse_barrier(int i)      last instruction that may touch what i overwrites; -1: none
//     bool writes_kv(int i)
//     std::byte* place(int i)       the mark of a result that lies in its own place in the arena
//     std::byte* stage(int thread, int i, int tile)   private memory for a redo; null: don't
//     void unstage(int thread)      gives back what `stage` returned last: its result lost
//     void run(int thread, int i, int tile, std::byte* where)
//     int64_t redo_after_ns(int i)  how long a claimed tile may reasonably take
//     void fetch_ahead(int thread, int i)   while the thread waits for tiles of i: asks for a little
//                                   more of the memory that it will read next
//   Wait  how to wait:
//     Waited until(ready, timeout_ns)   timeout < 0: no limit
//     void notify()                     something was published or left
//     int64_t now()
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pool/announcements.h"
#include "pool/step_control.h"

namespace takt {

enum class Waited { kReady, kTimeout, kAborted };

template <class Sync, class Step, class Wait>
class Walk {
 public:
  Walk(int thread, Step& step, StepControl<Sync>& control, Announcements<Sync>& announcements,
       Wait& wait)
      : thread_(thread),
        epoch_(control.epoch()),
        step_(step),
        control_(control),
        announcements_(announcements),
        wait_(wait) {}

  // Runs until the step's end; the caller leaves the announcements. False if aborted.
  bool run(int first) {
    for (int i = std::max(first, control_.front()); i < control_.end(); ++i) {
      if (control_.num_tiles(i) > 0 && !run_instruction(i)) return false;
      control_.advance_front(i + 1);
      i = std::max(i, control_.front() - 1);
    }
    return true;
  }

 private:
  bool run_instruction(int i) {
    announcements_.enter(thread_, epoch_, i, step_.writes_kv(i));
    wait_.notify();
    if (!wait_for_laggards(i)) return false;
    int num_run = 0;
    const int64_t start = wait_.now();
    for (int tile; (tile = control_.claim(epoch_, i, thread_)) >= 0; ++num_run) {
      std::byte* place = step_.place(i);
      step_.run(thread_, i, tile, place);
      if (control_.publish(i, tile, place)) wait_.notify();
    }
    return wait_for_tiles(i, num_run, start);
  }

  // What this instruction overwrites may be in use by threads that fell behind.
  bool wait_for_laggards(int i) {
    if (const int barrier = step_.reuse_barrier(i); barrier >= 0) {
      if (!ready([&] { return !announcements_.any_up_to(epoch_, barrier); })) return false;
    }
    if (step_.writes_kv(i)) {
      // Blocks that an older step wrote may have been freed and given to another sequence. Threads
      // that still read K/V for an older step are not waited for: whatever they compute from values
      // that change under them is dropped, since that step's results are all published.
      if (!ready([&] { return !announcements_.any_older_kv_writer(epoch_); })) return false;
    }
    return true;
  }

  template <class Condition>
  bool ready(Condition condition) {
    return condition() || wait_.until(condition, -1) == Waited::kReady;
  }

  // `num_run` tiles of the instruction took this thread since `start`.
  bool wait_for_tiles(int i, int num_run, int64_t start) {
    const int num_tiles = control_.num_tiles(i);
    int64_t patience_ns = kNotYetKnown;
    for (int tile = 0; tile < num_tiles; ++tile) {
      while (control_.result(i, tile) == nullptr) {
        if (patience_ns == kNotYetKnown) patience_ns = patience(i, num_run, start);
        const auto is_published = [&] {
          if (control_.result(i, tile) != nullptr) return true;
          step_.fetch_ahead(thread_, i);
          return false;
        };
        const Waited waited = wait_.until(is_published, patience_ns);
        if (waited == Waited::kAborted) return false;
        if (waited == Waited::kTimeout) {
          // The others wait too: begin at different tiles. After one time-out, the rest of the
          // laggards' tiles need no further patience.
          const bool redone = redo_one(i, tile + thread_ % (num_tiles - tile), tile, num_tiles);
          patience_ns = redone ? 0 : std::max(patience_ns, kNoStagingPatienceNs);
        }
      }
    }
    return true;
  }

  // How long a claimed tile may stay unpublished.
  int64_t patience(int i, int num_run, int64_t start) {
    const int64_t expected = step_.redo_after_ns(i);
    return num_run == 0 ? expected : std::max(expected, 2 * (wait_.now() - start) / num_run);
  }

  // Executes the first unpublished tile at or after `start`, wrapping round to `first`; false if it
  // had to stay undone.
  bool redo_one(int i, int start, int first, int num_tiles) {
    int tile = start;
    while (control_.result(i, tile) != nullptr) {
      tile = tile + 1 < num_tiles ? tile + 1 : first;
      if (tile == start) return true;
    }
    std::byte* where = step_.stage(thread_, i, tile);
    if (where == nullptr) return false;
    step_.run(thread_, i, tile, where);
    if (control_.publish(i, tile, where)) {
      control_.count_redone();
      wait_.notify();
    } else {
      step_.unstage(thread_);
    }
    return true;
  }

  static constexpr int64_t kNotYetKnown = -1;
  static constexpr int64_t kNoStagingPatienceNs = 1'000'000;

  const int thread_;
  const uint64_t epoch_;
  Step& step_;
  StepControl<Sync>& control_;
  Announcements<Sync>& announcements_;
  Wait& wait_;
};

}  // namespace takt
