// The redo protocol under every interleaving within a budget: nothing is overwritten while another
// thread touches it, no stale K/V lands, results are right, nobody waits for ever. Each part of the
// protocol is also left out in turn, and the explorer must notice.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "pool/announcements.h"
#include "pool/region.h"
#include "pool/step_control.h"
#include "pool/walk.h"
#include "tests/check.h"
#include "tests/explorer.h"

namespace takt::test {
namespace {

constexpr int kInstructions = 4;
constexpr int kTiles = 2;
constexpr int kPlaces = 3;  // instruction i writes place i % 3, which i - 2 was the last to read
// Late enough that no reuse of places within the step waits for it.
constexpr int kKVInstruction = 2;
constexpr int kNumContexts = 2;

enum class Fault { kNone, kNoReuseBarrier, kNoKVWait, kNoFreeCheck, kWeakStores };

// Memory that no thread may write while another one reads or writes it.
class Cell {
 public:
  void write(uint64_t value) {
    Explorer& e = *Explorer::current();
    if (num_readers_ > 0 || writing_) e.fail("memory in use was overwritten");
    writing_ = true;
    e.point();
    value_ = value;
    e.point();
    writing_ = false;
  }
  uint64_t read() {
    Explorer& e = *Explorer::current();
    if (writing_) e.fail("memory was read while it was written");
    ++num_readers_;
    e.point();
    const uint64_t value = value_;
    --num_readers_;
    return value;
  }

 private:
  uint64_t value_ = 0;
  int num_readers_ = 0;
  bool writing_ = false;
};

// A KV slot. Equal writes of one step may meet; those of an older step must not follow a newer one.
struct Slot {
  uint64_t epoch = 0;

  void write(uint64_t of_epoch) {
    Explorer::current()->point();
    if (epoch > of_epoch) Explorer::current()->fail("an older step's K/V replaced a newer one's");
    epoch = of_epoch;
  }
};

struct Context;

struct Shared {
  explicit Shared(int num_threads, Fault f) : announcements(num_threads), fault(f) {}
  Announcements<ExploredSync> announcements;
  Region<ExploredSync, Context> region;
  ExploredAtomic<uint64_t> closing{0};
  Slot kv[kTiles];
  Fault fault;
};

uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x9e3779b97f4a7c15u + 1; }

uint64_t expected_tile(uint64_t epoch, int i, int tile) {
  uint64_t h = mix(epoch, uint64_t(i * kTiles + tile));
  if (i > 0) {
    for (int t = 0; t < kTiles; ++t) h = mix(h, expected_tile(epoch, i - 1, t));
  }
  return i > kKVInstruction ? mix(h, epoch) : h;
}

// One step in flight, as Walk sees it.
struct Context {
  Context(Shared& s, int num_threads)
      : shared(s),
        control(std::vector<int32_t>(kInstructions, kTiles), num_threads),
        staged(size_t(num_threads)) {}

  void begin(uint64_t of_epoch) {
    epoch = of_epoch;
    for (auto& s : staged) s.clear();
    control.reset(epoch, std::vector<int32_t>(kInstructions, kTiles));
    control.set_end(kInstructions);
  }
  int reuse_barrier(int i) const {
    return shared.fault == Fault::kNoReuseBarrier || i < kPlaces ? -1 : i - kPlaces + 1;
  }
  bool writes_kv(int i) const {
    return i == kKVInstruction && shared.fault != Fault::kNoKVWait;
  }
  std::byte* place(int) { return &mark; }
  std::byte* stage(int thread, int, int) {
    staged[size_t(thread)].push_back(std::make_unique<Cell>());
    return reinterpret_cast<std::byte*>(staged[size_t(thread)].back().get());
  }
  void unstage(int thread) { staged[size_t(thread)].pop_back(); }
  int64_t redo_after_ns(int) const { return 0; }
  void fetch_ahead(int, int) {}
  void run(int, int i, int tile, std::byte* where) {
    uint64_t h = mix(epoch, uint64_t(i * kTiles + tile));
    if (i > 0) {
      for (int t = 0; t < kTiles; ++t) h = mix(h, cell(i - 1, t, control.result(i - 1, t)).read());
    }
    if (i == kKVInstruction) shared.kv[tile].write(epoch);
    if (i > kKVInstruction) h = mix(h, shared.kv[tile].epoch);
    cell(i, tile, where).write(h);
  }
  Cell& cell(int i, int tile, std::byte* where) {
    if (where == nullptr) Explorer::current()->fail("a result was read before it was published");
    return where == &mark ? places[i % kPlaces][tile] : *reinterpret_cast<Cell*>(where);
  }

  Shared& shared;
  StepControl<ExploredSync> control;
  uint64_t epoch = 0;
  std::byte mark{};
  Cell places[kPlaces][kTiles];
  std::vector<std::vector<std::unique_ptr<Cell>>> staged;
};

using ModelWalk = Walk<ExploredSync, Context, ExploredWait>;

// What Pool::worker does, with waiting in place of parking.
void worker(Shared& shared, int thread) {
  ExploredWait wait;
  for (uint64_t done = Region<ExploredSync, Context>::kNone;;) {
    uint64_t number = 0;
    wait.until(
        [&] {
          number = shared.region.number();
          return (number != shared.region.kNone && number != done) ||
                 shared.closing.load(std::memory_order_acquire) != 0;
        },
        -1);
    if (shared.closing.load(std::memory_order_acquire) != 0) return;
    int first;
    if (Context* step = shared.region.enter(thread, number, shared.announcements, &first)) {
      ModelWalk(thread, *step, step->control, shared.announcements, wait).run(first);
      shared.announcements.leave(thread);
    }
    done = number;
  }
}

// What Program::run and Pool::run do.
void runner(Shared& shared, std::vector<std::unique_ptr<Context>>& contexts, int num_steps) {
  ExploredWait wait;
  for (uint64_t epoch = 1; epoch <= uint64_t(num_steps); ++epoch) {
    const auto is_free = [&](const std::unique_ptr<Context>& c) {
      return shared.fault == Fault::kNoFreeCheck || !shared.announcements.any_in(c->epoch);
    };
    auto free = contexts.end();
    wait.until(
        [&] {
          free = std::find_if(contexts.begin(), contexts.end(), is_free);
          return free != contexts.end();
        },
        -1);
    Context& step = **free;
    step.begin(epoch);
    shared.region.open(step, epoch, 0);
    ModelWalk(0, step, step.control, shared.announcements, wait).run(0);
    shared.region.close();
    shared.announcements.leave(0);
    for (int t = 0; t < kTiles; ++t) {
      const int last = kInstructions - 1;
      if (step.cell(last, t, step.control.result(last, t)).read() !=
          expected_tile(epoch, last, t)) {
        Explorer::current()->fail("a wrong result");
      }
    }
  }
  shared.closing.store(1, std::memory_order_seq_cst);
}

std::string explore(int num_threads, int num_steps, int budget, Fault fault) {
  Explorer explorer;
  explorer.weaken_stores = fault == Fault::kWeakStores;
  std::unique_ptr<Shared> shared;
  std::vector<std::unique_ptr<Context>> contexts;
  const std::string failure = explorer.explore(budget, [&] {
    contexts.clear();
    shared = std::make_unique<Shared>(num_threads, fault);
    for (int c = 0; c < kNumContexts; ++c) {
      contexts.push_back(std::make_unique<Context>(*shared, num_threads));
    }
    Explorer::Threads threads{[&, num_steps] { runner(*shared, contexts, num_steps); }};
    for (int t = 1; t < num_threads; ++t) threads.push_back([&, t] { worker(*shared, t); });
    return threads;
  });
  std::printf("%d threads, %d steps, budget %d, fault %d: %ld executions; %s\n", num_threads,
              num_steps, budget, int(fault), long(explorer.num_executions()),
              failure.empty() ? "sound" : failure.c_str());
  std::fflush(stdout);
  return failure;
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  CHECK(explore(2, 3, 2, Fault::kNone).empty());
  CHECK(explore(3, 1, 2, Fault::kNone).empty());
  for (const Fault fault :
       {Fault::kNoReuseBarrier, Fault::kNoKVWait, Fault::kNoFreeCheck, Fault::kWeakStores}) {
    CHECK(!explore(2, 3, 2, fault).empty(), "fault %d went unnoticed", int(fault));
  }
}
