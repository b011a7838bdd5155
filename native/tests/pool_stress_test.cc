// Steps on a real pool with threads that fall behind at random: results are those of one thread.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "pool/pool.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt::test {
namespace {

constexpr int kInstructions = 12;
constexpr int kMaxTiles = 6;
// Instruction i writes place i % 4 and reads the two before; so the place was last read by i - 2.
constexpr int kPlaces = 4;
constexpr int kKVInstruction = 4;

// A chain of instructions over few places: each tile mixes all results of the instruction before.
class ChainStep final : public Step {
 public:
  ChainStep(uint64_t laggard_seed, int num_threads, std::vector<std::atomic<uint64_t>>& kv)
      : control_(std::vector<int32_t>(kInstructions, kMaxTiles), num_threads),
        kv_(kv),
        laggard_seed_(laggard_seed),
        staging_(size_t(num_threads)) {
    for (auto& s : staging_) s.memory.resize(kInstructions * kMaxTiles);
  }

  void begin(uint64_t epoch) {
    input_ = epoch;
    for (auto& s : staging_) s.used = 0;
    int32_t tiles[kInstructions];
    for (int i = 0; i < kInstructions; ++i) {
      tiles[i] = 1 + int32_t((epoch + uint64_t(i)) % kMaxTiles);
    }
    tiles[kInstructions / 2] = 0;  // one without work
    control_.reset(epoch, tiles);
  }

  int reuse_barrier(int i) const override { return i >= kPlaces ? i - kPlaces + 2 : -1; }
  bool writes_kv(int i) const override { return i == kKVInstruction; }
  std::byte* place(int) const override { return mark(); }
  std::byte* stage(int thread, int, int) override {
    Staging& s = staging_[size_t(thread)];
    if (s.used == s.memory.size()) return nullptr;
    return reinterpret_cast<std::byte*>(&s.memory[s.used++]);
  }
  void unstage(int thread) override { --staging_[size_t(thread)].used; }
  int64_t redo_after_ns(int) const override { return 5'000; }
  void fetch_ahead(int, int) override {}
  StepControl<RealSync>& control() override { return control_; }

  void run(int, int i, int tile, std::byte* where) override {
    uint64_t mixed = input_ * 31 + uint64_t(i * 64 + tile);
    for (int before = i - 1; before >= 0 && before >= i - 2; --before) {
      for (int t = 0; t < control_.num_tiles(before); ++t) {
        mixed = mixed * 0x9e3779b97f4a7c15u + read(before, t);
      }
      if (control_.num_tiles(before) > 0) break;
    }
    if (i == kKVInstruction) {
      kv_[size_t(tile)].store(input_, std::memory_order_relaxed);
    } else if (i > kKVInstruction && control_.num_tiles(kKVInstruction) > tile) {
      mixed += kv_[size_t(tile)].load(std::memory_order_relaxed);
    }
    fall_behind(i, tile);
    if (where == mark()) {
      places_[i % kPlaces][tile] = mixed;
    } else {
      std::memcpy(where, &mixed, sizeof mixed);
    }
  }

  uint64_t read(int i, int tile) const {
    const std::byte* where = control_.result(i, tile);
    CHECK(where != nullptr);
    if (where == mark()) return places_[i % kPlaces][tile];
    uint64_t value;
    std::memcpy(&value, where, sizeof value);
    return value;
  }

 private:
  struct alignas(64) Staging {
    std::vector<uint64_t> memory;
    size_t used = 0;
  };

  std::byte* mark() const { return const_cast<std::byte*>(&mark_); }

  // Sleeps now and then inside a tile, as a thread does whose core was taken.
  void fall_behind(int i, int tile) {
    if (laggard_seed_ == 0) return;
    thread_local Random random(laggard_seed_ ^ std::hash<std::thread::id>{}(
                                                   std::this_thread::get_id()));
    if (random.below(40) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(300) + i + tile));
    }
  }

  StepControl<RealSync> control_;
  std::vector<std::atomic<uint64_t>>& kv_;
  uint64_t laggard_seed_;
  uint64_t input_ = 0;
  std::byte mark_{};
  uint64_t places_[kPlaces][kMaxTiles] = {};
  std::vector<Staging> staging_;
};

// Results of the last instruction over many steps.
std::vector<uint64_t> run_steps(int num_threads, int num_steps, uint64_t laggard_seed,
                                int regions_per_step, int64_t* redone) {
  Pool pool(num_threads);
  std::vector<std::atomic<uint64_t>> kv(kMaxTiles);
  std::vector<std::unique_ptr<ChainStep>> contexts;
  for (int c = 0; c < 3; ++c) {
    contexts.push_back(std::make_unique<ChainStep>(laggard_seed, num_threads, kv));
  }
  std::vector<uint64_t> results;
  for (int s = 0; s < num_steps; ++s) {
    ChainStep* step = nullptr;
    for (const auto& c : contexts) {
      if (pool.is_free(c->control().epoch())) step = c.get();
    }
    if (step == nullptr) {
      step = contexts[0].get();
      CHECK(pool.wait_until_free(step->control().epoch()));
    }
    step->begin(pool.next_epoch());
    for (int r = 0; r < regions_per_step; ++r) {
      const int first = kInstructions * r / regions_per_step;
      const int end = kInstructions * (r + 1) / regions_per_step;
      if ((s + r) % 2 == 0) {
        CHECK(pool.run(*step, first, end));
        continue;
      }
      // The caller has something else to do first, for less or more time than the others need.
      pool.open(*step, first, end);
      const int64_t until = now_ns() + 1000 * (s % 40);
      while (now_ns() < until) spin_pause();
      CHECK(pool.join(*step, first));
    }
    for (int t = 0; t < step->control().num_tiles(kInstructions - 1); ++t) {
      results.push_back(step->read(kInstructions - 1, t));
    }
    *redone += step->control().num_redone();
  }
  for (const auto& c : contexts) CHECK(pool.wait_until_free(c->control().epoch()));
  return results;
}

void laggards_do_not_change_results() {
  constexpr int kSteps = 400;
  int64_t ignored = 0;
  const auto expected = run_steps(1, kSteps, 0, 1, &ignored);
  CHECK(ignored == 0, "one thread redid %ld tiles", long(ignored));
  for (const int threads : {2, 3, 5}) {
    int64_t redone = 0;
    CHECK(run_steps(threads, kSteps, uint64_t(threads), 1, &redone) == expected, "%d", threads);
    CHECK(redone > 0, "no laggard's tile was executed again");
    CHECK(run_steps(threads, kSteps, uint64_t(threads), 4, &redone) == expected, "%d", threads);
  }
}

void tiny_steps_end() {
  int64_t redone = 0;
  const auto expected = run_steps(1, 10'000, 0, 1, &redone);
  CHECK(run_steps(2, 10'000, 0, 1, &redone) == expected);
}

void abort_ends_a_run() {
  Pool pool(2);
  std::vector<std::atomic<uint64_t>> kv(kMaxTiles);
  ChainStep step(0, 2, kv);
  step.begin(pool.next_epoch());
  pool.abort();
  CHECK(!pool.run(step, 0, kInstructions));
  pool.open(step, 0, kInstructions);
  CHECK(!pool.join(step, 0));
  pool.close();
  pool.close();
}

void a_step_in_use_is_not_free() {
  Pool pool(2);
  const uint64_t epoch = pool.next_epoch();
  CHECK(pool.is_free(epoch));
  CHECK(pool.next_epoch() != epoch);
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  laggards_do_not_change_results();
  tiny_steps_end();
  abort_ends_a_run();
  a_step_in_use_is_not_free();
}
