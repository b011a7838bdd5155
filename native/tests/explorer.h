// Explores interleavings of a few threads, and the delays of their stores, exhaustively.
//
// Threads are fibers of one real thread; they hand over at each operation on a shared word. A store
// that is not sequentially consistent waits in its thread's buffer, as on x86, until the thread
// does something that drains it or the explorer chooses to. An execution is a sequence of choices:
// to go on with a thread and to let a wait time out are free, to take over from a thread that could
// go on and to drain a buffer early cost one. All executions within a budget are run, by
// depth-first search over the choices.
#pragma once
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pool/walk.h"

namespace takt::test {

class Explorer {
 public:
  // Runs `setup` and then the threads it returns, once for each execution within `budget`. Stops at
  // the first failure, whose message it returns; "" if there was none.
  using Threads = std::vector<std::function<void()>>;
  std::string explore(int budget, const std::function<Threads()>& setup);
  int64_t num_executions() const { return num_executions_; }
  // Makes sequentially consistent stores as weak as others: a fault that must be found.
  bool weaken_stores = false;

  // -- called by threads --------------------------------------------------------------------
  static Explorer* current();
  // A place where another thread may take over.
  void point();
  // Ends the execution.
  [[noreturn]] void fail(const std::string& why);
  // Waits until another thread has written; or, if `may_time_out`, perhaps less long: then false.
  bool wait_for_writes(bool may_time_out);

  struct BufferedStore {
    void* address;
    uint64_t bits;
    void (*apply)(void* address, uint64_t bits);
  };
  void buffer(const BufferedStore& store);
  void drain();
  void note_write() { ++num_writes_; }
  const BufferedStore* newest_buffered(const void* address) const;

 private:
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::function<void()> body;
    std::deque<BufferedStore> stores;
    bool done = false;
    bool waiting = false;
    bool may_time_out = false;
    bool timed_out = false;
    int64_t writes_seen = 0;
  };
  struct Choice {
    int taken;
    int num_alternatives;
  };

  static void enter_fiber();
  void run_once(const std::function<Threads()>& setup);
  bool next_prefix();
  int choose(int num_alternatives, int cost);
  bool can_run(const Fiber& f) const;
  void switch_to(int fiber);
  void leave_current();
  void flush_one(Fiber& f);

  int budget_ = 0;
  int spent_ = 0;
  int64_t num_executions_ = 0;
  int64_t num_writes_ = 0;
  std::vector<Choice> trace_;
  std::vector<int> prefix_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  int running_ = -1;
  ucontext_t main_;
  std::string failure_;
};

// A shared word under the explorer.
template <class T>
class ExploredAtomic {
 public:
  ExploredAtomic(T value = T{}) : value_(value) {}

  T load(std::memory_order) const {
    Explorer* e = Explorer::current();
    if (e == nullptr) return value_;
    e->point();
    const auto* own = e->newest_buffered(this);
    return own != nullptr ? from_bits(own->bits) : value_;
  }
  void store(T value, std::memory_order order) {
    Explorer* e = Explorer::current();
    if (e == nullptr) {
      value_ = value;
      return;
    }
    e->point();
    e->buffer({this, to_bits(value), [](void* address, uint64_t bits) {
                 static_cast<ExploredAtomic*>(address)->value_ = from_bits(bits);
               }});
    if (order == std::memory_order_seq_cst && !e->weaken_stores) e->drain();
  }
  bool compare_exchange_strong(T& expected, T value, std::memory_order) {
    begin_update();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = value;
    note_write();
    return true;
  }
  T fetch_add(T n, std::memory_order) {
    begin_update();
    const T before = value_;
    value_ = T(before + n);
    note_write();
    return before;
  }

 private:
  static uint64_t to_bits(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }
  static T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static void begin_update() {
    if (Explorer* e = Explorer::current()) {
      e->point();
      e->drain();
    }
  }
  static void note_write() {
    if (Explorer* e = Explorer::current()) e->note_write();
  }

  T value_;
};

struct ExploredSync {
  template <class T>
  using Atomic = ExploredAtomic<T>;
};

class ExploredWait {
 public:
  template <class Condition>
  Waited until(Condition ready, int64_t timeout_ns) {
    for (;;) {
      if (ready()) return Waited::kReady;
      if (!Explorer::current()->wait_for_writes(timeout_ns >= 0)) return Waited::kTimeout;
    }
  }
  void notify() {}
  static int64_t now() { return 0; }
};

}  // namespace takt::test
