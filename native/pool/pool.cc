#include "pool/pool.h"

#include <stdexcept>
#include <string>

#include "pool/cpus.h"
#include "pool/futex.h"
#include "pool/walk.h"

namespace takt {
namespace {

// A wait inside a step is nearly always for a tile in progress, tens of microseconds at most.
constexpr int64_t kSpinNs = 200'000;
// Between steps the engine schedules and the server needs the cores: park soon.
constexpr int64_t kParkSpinNs = 10'000;

int checked(int num_threads) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("a pool has 1 to 1024 threads, not " + std::to_string(num_threads));
  }
  return num_threads;
}

}  // namespace

Pool::Use::Use(Pool& pool) : pool_(pool) {
  if (pool_.in_use_.exchange(true, std::memory_order_acquire)) {
    throw std::invalid_argument("two threads run programs on one pool at once");
  }
}

Pool::Pool(int num_threads, int num_peers)
    : spin_ns_(int64_t{num_threads} * (1 + num_peers) <= num_usable_cpus() ? kSpinNs : 0),
      announcements_(checked(num_threads)),
      stolen_time_(num_threads) {
  for (int t = 1; t < num_threads; ++t) {
    threads_.emplace_back([this, t] { worker(t); });
    pthread_setname_np(threads_.back().native_handle(), "takt-pool");
    stolen_time_.watch(t, threads_.back().native_handle());
  }
}

Pool::~Pool() { close(); }

bool Pool::wait_until_free(uint64_t epoch) {
  PoolWait wait(wait_state_, spin_ns_, stolen_time_.idle(0));
  return wait.until([&] { return is_free(epoch); }, -1) == Waited::kReady;
}

bool Pool::run(Step& step, int first, int end) {
  open(step, first, end);
  return join(step, first);
}

void Pool::open(Step& step, int first, int end) {
  step.control().set_end(end);
  if (!threads_.empty() && !is_aborted()) {
    region_.open(step, step.control().epoch(), first);
    wake_.fetch_add(1, std::memory_order_seq_cst);
    if (num_parked_.load(std::memory_order_seq_cst) > 0) futex_wake_all(wake_);
  }
  opened_ns_ = now_ns();
}

// The caller needs no invitation: it knows the step, which does not end without it. Until it has
// announced itself it touches nothing, like any thread that comes late.
bool Pool::join(Step& step, int first) {
  if (is_aborted()) {
    region_.close();
    return false;
  }
  // What it did meanwhile is not the step's computing.
  stolen_time_.idle(0).add_spin(now_ns() - opened_ns_);
  PoolWait wait(wait_state_, spin_ns_, stolen_time_.idle(0));
  Walk<RealSync, Step, PoolWait> walk(0, step, step.control(), announcements_, wait);
  const bool done = walk.run(first);
  region_.close();
  announcements_.leave(0);
  return done;
}

void Pool::worker(int thread) {
  for (uint64_t done = 0;;) {
    park(done);
    if (closing_.load(std::memory_order_acquire)) return;
    const uint64_t region = region_.number();
    if (region == region_.kNone || region == done) continue;
    enter(thread, region);
    done = region;
  }
}

bool Pool::has_region(uint64_t done) const {
  const uint64_t region = region_.number();
  return (region != region_.kNone && region != done) || closing_.load(std::memory_order_acquire);
}

void Pool::park(uint64_t done) {
  if (spin_ns_ > 0) {
    const int64_t start = now_ns();
    for (int turn = 1; turn % 16 != 0 || now_ns() - start < kParkSpinNs; ++turn) {
      if (has_region(done)) return;
      spin_pause();
    }
  }
  const uint32_t seen = wake_.load(std::memory_order_seq_cst);
  num_parked_.fetch_add(1, std::memory_order_seq_cst);
  if (!has_region(done)) futex_wait(wake_, seen, -1);
  num_parked_.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::enter(int thread, uint64_t region) {
  int first;
  Step* step = region_.enter(thread, region, announcements_, &first);
  if (step == nullptr) return;
  PoolWait wait(wait_state_, spin_ns_, stolen_time_.idle(thread));
  Walk<RealSync, Step, PoolWait>(thread, *step, step->control(), announcements_, wait).run(first);
  announcements_.leave(thread);
  wait.notify();
}

void Pool::abort() {
  wait_state_.abort.store(1, std::memory_order_seq_cst);
  wait_state_.progress.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(wait_state_.progress);
}

void Pool::close() {
  closing_.store(true, std::memory_order_seq_cst);
  wake_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(wake_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace takt
