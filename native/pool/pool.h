// Threads that walk a step's instructions together. Thread 0 is whoever calls `run`.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "pool/announcements.h"
#include "pool/region.h"
#include "pool/step.h"
#include "pool/stolen_time.h"
#include "pool/wait.h"

namespace takt {

class Pool {
 public:
  // Holds a pool for one caller at a time; throws std::invalid_argument if another one has it.
  class Use {
   public:
    explicit Use(Pool& pool);
    ~Use() { pool_.in_use_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Pool& pool_;
  };

  // Makes num_threads - 1 threads. Waits spin if the pool and its `num_peers` other pools of equal
  // size on these CPUs can all run at once, and sleep otherwise.
  explicit Pool(int num_threads, int num_peers = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return announcements_.num_threads(); }
  int64_t spin_ns() const { return spin_ns_; }

  // A number that no step had before; steps may be told apart by it for ever.
  uint64_t next_epoch() { return ++epoch_; }

  // No thread can touch anything of the step any more, so its memory may be used again.
  bool is_free(uint64_t epoch) const { return !announcements_.any_in(epoch); }
  // Sleeps until is_free; false if aborted.
  bool wait_until_free(uint64_t epoch);

  // Runs instructions [first, end) of a step whose control was reset with next_epoch(). Threads
  // that fell behind may still be inside when it returns. False if aborted.
  bool run(Step& step, int first, int end);
  // The same in two parts: the other threads begin, and the caller joins them when it has done
  // something else. Nothing else may run on the pool in between.
  void open(Step& step, int first, int end);
  bool join(Step& step, int first);

  // What the threads did and lost to others; the program that runs steps calls begin and end.
  StolenTime& stolen_time() { return stolen_time_; }

  // Ends all waits, now and later; every run fails from now on. May be called by any thread.
  void abort();
  bool is_aborted() const { return wait_state_.abort.load(std::memory_order_relaxed) != 0; }

  // Joins the threads; no run may be in progress. Later calls do nothing.
  void close();

 private:
  void worker(int thread);
  bool has_region(uint64_t done) const;
  void park(uint64_t done);
  void enter(int thread, uint64_t region);

  const int64_t spin_ns_;
  Announcements<RealSync> announcements_;
  WaitState wait_state_;
  StolenTime stolen_time_;
  uint64_t epoch_ = 0;

  int64_t opened_ns_ = 0;

  alignas(64) Region<RealSync, Step> region_;
  alignas(64) std::atomic<uint32_t> wake_{0};  // changes when a region begins
  std::atomic<uint32_t> num_parked_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> in_use_{false};
  std::vector<std::thread> threads_;
};

}  // namespace takt
