#include "measure/barrier_cost.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "pool/cpus.h"
#include "pool/futex.h"
#include "pool/pool.h"

namespace takt {
namespace {

constexpr int kInstructions = 200;  // as many as a small model's step has
// Of a tile. Long enough for the other threads to come before the first one could take all tiles.
constexpr int64_t kTileNs = 20'000;
constexpr int kManyPeers = 1 << 20;

class BusyStep final : public Step {
 public:
  explicit BusyStep(int num_tiles)
      : num_tiles_(kInstructions, num_tiles), control_(num_tiles_, num_tiles) {}

  void begin(uint64_t epoch) { control_.reset(epoch, num_tiles_); }

  int reuse_barrier(int) const override { return -1; }
  bool writes_kv(int) const override { return false; }
  std::byte* place(int) const override { return const_cast<std::byte*>(&mark_); }
  std::byte* stage(int, int, int) override { return &mark_; }
  void unstage(int) override {}
  void run(int, int, int, std::byte*) override {
    for (const int64_t end = now_ns() + kTileNs; now_ns() < end;) spin_pause();
  }
  int64_t redo_after_ns(int) const override { return 1'000'000'000; }
  void fetch_ahead(int, int) override {}
  StepControl<RealSync>& control() override { return control_; }

 private:
  std::vector<int32_t> num_tiles_;
  StepControl<RealSync> control_;
  std::byte mark_{};
};

}  // namespace

double barrier_cost_ns(int num_threads, bool spins, int num_steps) {
  if (num_steps < 1) throw std::invalid_argument("one step at least is measured");
  Pool pool(num_threads, spins ? 0 : kManyPeers);
  if (spins && pool.spin_ns() == 0) {
    throw std::invalid_argument(std::to_string(num_threads) + " threads cannot spin on " +
                                std::to_string(num_usable_cpus()) + " CPUs");
  }
  BusyStep step(num_threads);
  std::vector<double> times;
  for (int i = 0; i < num_steps; ++i) {
    const uint64_t epoch = pool.next_epoch();
    step.begin(epoch);
    const int64_t start = now_ns();
    pool.run(step, 0, kInstructions);
    times.push_back(double(now_ns() - start) / kInstructions - double(kTileNs));
    pool.wait_until_free(epoch);
  }
  std::nth_element(times.begin(), times.begin() + num_steps / 2, times.end());
  return times[size_t(num_steps / 2)];
}

}  // namespace takt
