// A profiled step: the same results, and times of every instruction inside the step's own.

#include <algorithm>
#include <vector>

#include "tests/check.h"
#include "tests/tiny_model.h"

namespace takt::test {
namespace {

using Chunk = TinyModel::Chunk;

std::vector<Chunk> some_step(int seed) {
  Random random(static_cast<uint64_t>(seed));
  std::vector<Chunk> chunks;
  for (int seq = 0; seq < 3; ++seq) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 1 + 13 * seq; ++i) {
      tokens.push_back(int32_t(random.below(TinyModel::kVocab)));
    }
    chunks.push_back({seq, 0, std::move(tokens)});
  }
  return chunks;
}

void times_lie_inside_the_step(const Program& program) {
  const StepProfile& profile = *program.profile();
  const auto& stamps = profile.stamps;
  for (int s = 1; s < StepProfile::kNumStamps; ++s) CHECK(stamps[s - 1] <= stamps[s], "%d", s);
  int64_t latest_end = stamps[StepProfile::kRunStart];
  int64_t num_tiles = 0;
  for (int i = 0; i < program.num_instructions(); ++i) {
    int64_t end = 0;
    for (int t = 0; t < program.num_threads(); ++t) {
      const InstructionTimes& times = profile.row(t)[i];
      num_tiles += times.num_tiles;
      if (times.num_tiles == 0) {
        CHECK(times.busy_ns == 0 && times.first_start_ns == 0, "instruction %d", i);
        continue;
      }
      CHECK(times.first_start_ns >= stamps[StepProfile::kRunStart], "instruction %d", i);
      CHECK(times.busy_ns <= times.last_end_ns - times.first_start_ns, "instruction %d", i);
      end = std::max(end, times.last_end_ns);
    }
    latest_end = std::max(latest_end, end);
  }
  CHECK(num_tiles >= 3 * 7, "three layers have seven instructions with tiles at least");
  // A thread that fell behind may end after the step, never by much: the step waits for it to leave.
  CHECK(latest_end > stamps[StepProfile::kRunStart]);
}

void results_do_not_change() {
  for (const int threads : {1, 2, 4}) {
    TinyModel plain(threads), profiled(threads);
    CHECK(profiled.program->profile() == nullptr);
    profiled.program->set_profiling(true);
    for (int seed = 0; seed < 5; ++seed) {
      CHECK(plain.step(some_step(seed)) == profiled.step(some_step(seed)), "%d threads", threads);
      times_lie_inside_the_step(*profiled.program);
    }
    profiled.program->set_profiling(false);
    CHECK(profiled.program->profile() == nullptr);
    CHECK(plain.step(some_step(9)) == profiled.step(some_step(9)));
  }
}

void each_step_begins_anew() {
  TinyModel model(1);
  model.program->set_profiling(true);
  const auto tiles = [&] {
    int64_t sum = 0;
    const InstructionTimes* row = model.program->profile()->row(0);
    for (int i = 0; i < model.program->num_instructions(); ++i) sum += row[i].num_tiles;
    return sum;
  };
  model.step(some_step(1));
  const int64_t first = tiles();
  model.step(some_step(1));
  CHECK(tiles() == first, "the same step has as many tiles");
}

}  // namespace
}  // namespace takt::test

int main() {
  takt::test::results_do_not_change();
  takt::test::each_step_begins_anew();
}
