#include "tests/explorer.h"

#include "tests/check.h"

namespace takt::test {
namespace {

Explorer* g_current = nullptr;  // while an execution runs
constexpr size_t kStackBytes = 64 << 10;

}  // namespace

Explorer* Explorer::current() { return g_current; }

std::string Explorer::explore(int budget, const std::function<Threads()>& setup) {
  budget_ = budget;
  num_executions_ = 0;
  failure_.clear();
  prefix_.clear();
  do {
    run_once(setup);
    ++num_executions_;
  } while (failure_.empty() && next_prefix());
  return failure_;
}

void Explorer::run_once(const std::function<Threads()>& setup) {
  trace_.clear();
  spent_ = 0;
  num_writes_ = 0;
  const Threads bodies = setup();
  while (fibers_.size() < bodies.size()) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->stack.resize(kStackBytes);
  }
  for (size_t i = 0; i < bodies.size(); ++i) {
    Fiber& f = *fibers_[i];
    f.body = bodies[i];
    f.stores.clear();
    f.done = f.waiting = f.may_time_out = f.timed_out = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, &Explorer::enter_fiber, 0);
  }
  g_current = this;
  running_ = 0;
  swapcontext(&main_, &fibers_[0]->context);
  g_current = nullptr;
}

void Explorer::enter_fiber() {
  Explorer& e = *g_current;
  Fiber& f = *e.fibers_[size_t(e.running_)];
  f.body();
  e.drain();
  f.done = true;
  e.leave_current();
  CHECK(false, "a finished fiber was resumed");
}

// Goes back to the last choice that has an alternative left, and takes it.
bool Explorer::next_prefix() {
  while (!trace_.empty()) {
    const Choice last = trace_.back();
    trace_.pop_back();
    if (last.taken + 1 < last.num_alternatives) {
      prefix_.clear();
      for (const Choice& c : trace_) prefix_.push_back(c.taken);
      prefix_.push_back(last.taken + 1);
      return true;
    }
  }
  return false;
}

// 0, which is free, or another alternative for `cost`.
int Explorer::choose(int num_alternatives, int cost) {
  if (spent_ + cost > budget_) num_alternatives = 1;
  const size_t at = trace_.size();
  const int taken = at < prefix_.size() ? prefix_[at] : 0;
  CHECK(taken < num_alternatives, "an execution did not repeat");
  trace_.push_back({taken, num_alternatives});
  if (taken > 0) spent_ += cost;
  return taken;
}

bool Explorer::can_run(const Fiber& f) const {
  return !f.done && (!f.waiting || f.writes_seen != num_writes_);
}

void Explorer::point() {
  // Alternatives, in order: go on; switch to another thread; make a buffered store visible.
  int others[8], num_others = 0, buffers[8], num_buffers = 0;
  for (int i = 0; i < int(fibers_.size()); ++i) {
    if (i != running_ && can_run(*fibers_[size_t(i)])) others[num_others++] = i;
    if (!fibers_[size_t(i)]->stores.empty()) buffers[num_buffers++] = i;
  }
  const int choice = choose(1 + num_others + num_buffers, 1);
  if (choice == 0) return;
  if (choice <= num_others) {
    switch_to(others[choice - 1]);
  } else {
    flush_one(*fibers_[size_t(buffers[choice - 1 - num_others])]);
  }
}

void Explorer::switch_to(int fiber) {
  Fiber& from = *fibers_[size_t(running_)];
  running_ = fiber;
  Fiber& to = *fibers_[size_t(fiber)];
  to.waiting = false;
  swapcontext(&from.context, &to.context);
}

// The running thread has ended or waits: another goes on, or a wait times out, or all is over.
void Explorer::leave_current() {
  const int count = int(fibers_.size());
  for (int i = 1; i < count; ++i) {
    const int next = (running_ + i) % count;
    if (can_run(*fibers_[size_t(next)])) return switch_to(next);
  }
  for (int i = 0; i < count; ++i) {
    const int next = (running_ + i) % count;
    Fiber& f = *fibers_[size_t(next)];
    if (f.done || !f.may_time_out) continue;
    f.timed_out = true;
    if (i != 0) return switch_to(next);
    f.waiting = false;
    return;
  }
  for (const auto& f : fibers_) {
    if (!f->done && failure_.empty()) failure_ = "all threads wait for ever";
  }
  setcontext(&main_);
}

void Explorer::fail(const std::string& why) {
  failure_ = why;
  setcontext(&main_);
  std::abort();
}

bool Explorer::wait_for_writes(bool may_time_out) {
  if (may_time_out && choose(2, 0) == 1) return false;
  drain();  // a waiting thread's stores become visible in time
  Fiber& f = *fibers_[size_t(running_)];
  f.waiting = true;
  f.may_time_out = may_time_out;
  f.timed_out = false;
  f.writes_seen = num_writes_;
  leave_current();
  f.may_time_out = false;
  return !f.timed_out;
}

void Explorer::buffer(const BufferedStore& store) {
  fibers_[size_t(running_)]->stores.push_back(store);
}

void Explorer::flush_one(Fiber& f) {
  const BufferedStore store = f.stores.front();
  f.stores.pop_front();
  store.apply(store.address, store.bits);
  note_write();
}

void Explorer::drain() {
  Fiber& f = *fibers_[size_t(running_)];
  while (!f.stores.empty()) flush_one(f);
}

const Explorer::BufferedStore* Explorer::newest_buffered(const void* address) const {
  const auto& stores = fibers_[size_t(running_)]->stores;
  for (auto it = stores.rbegin(); it != stores.rend(); ++it) {
    if (it->address == address) return &*it;
  }
  return nullptr;
}

}  // namespace takt::test
