// Programs on a small random model: the same bits whatever the threads, the batch, the chunks or
// who falls behind; no allocation; bad inputs refused.
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <thread>

#include "tests/check.h"
#include "tests/tiny_model.h"

namespace {

std::atomic<bool> g_counting{false};
std::atomic<int64_t> g_num_allocations{0};

void* counted(size_t bytes) noexcept {
  if (g_counting.load(std::memory_order_relaxed)) g_num_allocations.fetch_add(1);
  return std::malloc(bytes);
}

void* counted_or_throw(size_t bytes) {
  if (void* p = counted(bytes)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return counted_or_throw(bytes); }
void* operator new[](size_t bytes) { return counted_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace takt::test {
namespace {

using Chunk = TinyModel::Chunk;

std::vector<int32_t> some_tokens(int count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(int32_t(random.below(TinyModel::kVocab)));
  return tokens;
}

// A ragged history: prompts in chunks of all sizes beside decodes, in a batch that changes.
std::vector<std::vector<Chunk>> ragged_steps() {
  Random random(11);
  std::vector<std::vector<Chunk>> steps;
  int lengths[TinyModel::kMaxSeqs] = {};
  for (int s = 0; s < (kIsSanitized ? 20 : 40); ++s) {
    std::vector<Chunk> chunks;
    int room = int(TinyModel::kLimits.max_num_tokens);
    for (int seq = 0; seq < TinyModel::kMaxSeqs; ++seq) {
      if (random.below(3) == 0 || room == 0) continue;
      const int wanted = random.below(2) == 0 ? 1 : 1 + int(random.below(70));
      const int count = std::min(wanted, room);
      chunks.push_back({seq, lengths[seq], some_tokens(count, uint64_t(s * 16 + seq))});
      lengths[seq] += count;
      room -= count;
    }
    if (!chunks.empty()) steps.push_back(std::move(chunks));
  }
  return steps;
}

std::vector<float> run_all(TinyModel& model, const std::vector<std::vector<Chunk>>& steps) {
  std::vector<float> all;
  for (const auto& chunks : steps) {
    const auto rows = model.step(chunks);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

// Stops this process' threads at random moments, as a busy machine does, while it lives.
class Laggards {
 public:
  Laggards() {
    struct sigaction action {};
    action.sa_handler = [](int) {
      const timespec pause{0, 300'000};
      nanosleep(&pause, nullptr);
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    thread_ = std::thread([this] { disturb(); });
  }
  ~Laggards() {
    stop_ = true;
    thread_.join();
  }

 private:
  void disturb() {
    const pid_t self = pid_t(syscall(SYS_gettid));
    std::vector<pid_t> threads;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const pid_t thread = std::atoi(entry.path().filename().c_str());
      if (thread != self) threads.push_back(thread);
    }
    Random random(3);
    while (!stop_) {
      const pid_t victim = threads[size_t(random.below(int64_t(threads.size())))];
      syscall(SYS_tgkill, getpid(), victim, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(100 + random.below(400)));
    }
  }

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void threads_do_not_matter() {
  const auto steps = ragged_steps();
  TinyModel one(1);
  const auto expected = run_all(one, steps);
  for (const int threads : {2, 3, 5}) {
    TinyModel model(threads);
    CHECK(run_all(model, steps) == expected, "with %d threads", threads);
  }
}

void laggards_do_not_matter() {
  const auto steps = ragged_steps();
  TinyModel one(1);
  const auto expected = run_all(one, steps);
  int64_t redone = 0;
  for (const int threads : {2, 3}) {
    TinyModel model(threads);
    const Laggards laggards;
    for (int again = 0; again < fewer_if_sanitized(4) || (redone == 0 && again < 4000); ++again) {
      size_t at = 0;
      for (const auto& chunks : steps) {
        const auto rows = model.step(chunks);
        CHECK(std::equal(rows.begin(), rows.end(), expected.begin() + int64_t(at)));
        at += rows.size();
        redone += model.output.at<int64_t>("header")[4];
      }
    }
  }
  CHECK(redone > 0, "no laggard's tile was executed again");
}

// One row's two best logprobs, for each position of a sequence, in chunks of so many tokens.
std::vector<float> by_chunks(TinyModel& model, const std::vector<int32_t>& tokens, int size) {
  std::vector<float> all;
  for (int first = 0; first < int(tokens.size()); first += size) {
    const int count = std::min(size, int(tokens.size()) - first);
    const Chunk chunk{2, first, {tokens.begin() + first, tokens.begin() + first + count}};
    const auto rows = model.step({&chunk, 1});
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

void chunks_do_not_matter() {
  TinyModel model(2);
  const auto tokens = some_tokens(600, 1);  // three splits of the context
  const auto expected = by_chunks(model, tokens, 40);
  CHECK(by_chunks(model, tokens, kIsSanitized ? 5 : 1) == expected);
  CHECK(by_chunks(model, tokens, 13) == expected);
}

void many_tiny_steps_end() {
  TinyModel model(2);
  const auto tokens = some_tokens(1, 9);
  const Chunk chunk{0, 0, tokens};
  const auto expected = model.step({&chunk, 1});
  for (int s = 0; s < fewer_if_sanitized(3000); ++s) CHECK(model.step({&chunk, 1}) == expected);
}

void pieces_equal_the_whole() {
  const auto steps = ragged_steps();
  TinyModel whole(2), pieces(2);
  for (const auto& chunks : steps) {
    const auto expected = whole.step(chunks);
    pieces.fill(chunks);
    pieces.program->begin(pieces.input.data());
    for (int i = 0; i < pieces.program->num_instructions(); ++i) pieces.program->execute(i, i + 1);
    pieces.program->end(pieces.output.data());
    CHECK(pieces.read_rows() == expected);
  }
}

bool is_refused(TinyModel& model) {
  try {
    model.program->run(model.input.data(), model.output.data());
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void starting_and_finishing_equals_running() {
  const auto steps = ragged_steps();
  for (const int threads : {1, 2, 3}) {
    TinyModel whole(threads), parts(threads);
    int number = 0;
    for (const auto& chunks : steps) {
      const auto expected = whole.step(chunks);
      parts.fill(chunks);
      parts.program->start(parts.input.data());
      // The input was copied, and the pool is taken.
      parts.input.at<int64_t>("header")[1] = -1;
      CHECK(is_refused(parts), "a step ran while another one was in progress");
      // Less or more time than the other threads need.
      std::this_thread::sleep_for(std::chrono::microseconds(number++ % 4 * 150));
      parts.program->finish(parts.output.data());
      CHECK(parts.read_rows() == expected, "with %d threads", threads);
    }
  }
}

void a_step_that_is_not_finished_gives_way_to_the_next() {
  const auto steps = ragged_steps();
  TinyModel whole(2), parts(2);
  for (const auto& chunks : steps) {
    const auto expected = whole.step(chunks);
    parts.fill(chunks);
    parts.program->start(parts.input.data());
    parts.program->start(parts.input.data());
    parts.program->finish(parts.output.data());
    CHECK(parts.read_rows() == expected);
  }
  try {
    parts.program->finish(parts.output.data());
    CHECK(false, "a step was finished twice");
  } catch (const std::invalid_argument&) {
  }
  parts.program->start(parts.input.data());  // and its threads are gone before the model is
}

void blocks_are_copied_first() {
  TinyModel model(2);
  const auto tokens = some_tokens(30, 4);
  const Chunk original{0, 0, tokens};
  model.step({&original, 1});
  const Chunk next{0, 30, {7}};
  const auto expected = model.step({&next, 1});
  // Sequence 3 shares block 0 by copy and block 1, partly filled, by a copy of that copy.
  const Chunk fork{3, 30, {7}};
  model.fill({&fork, 1});
  const int32_t copies[] = {0, 0, 3, 1, 0, 3, 0, TinyModel::kMaxSeqs, TinyModel::kMaxSeqs + 3,
                            1, TinyModel::kMaxSeqs, TinyModel::kMaxSeqs + 3};
  std::memcpy(model.input.at<int32_t>("block_copies"), copies, sizeof copies);
  model.input.at<int64_t>("header")[4] = 4;
  model.program->run(model.input.data(), model.output.data());
  CHECK(model.read_rows() == expected);
}

void steps_do_not_allocate() {
  TinyModel model(2);
  const auto steps = ragged_steps();
  for (const auto& chunks : steps) {
    model.fill(chunks);
    g_counting = true;
    model.program->run(model.input.data(), model.output.data());
    model.program->start(model.input.data());
    model.program->finish(model.output.data());
    g_counting = false;
  }
  CHECK(g_num_allocations == 0, "%ld allocations", long(g_num_allocations));
  g_counting = true;
  int* volatile kept = new int;
  delete kept;
  g_counting = false;
  CHECK(g_num_allocations == 1, "allocations are not counted");
}

template <class T>
void refuses(TinyModel& model, const char* field, int64_t index, T value) {
  const Chunk chunk{1, 0, some_tokens(20, 2)};
  model.fill({&chunk, 1});
  T& word = model.input.at<T>(field)[index];
  const T good = word;
  word = value;
  CHECK(is_refused(model), "%s", field);
  word = good;
}

void bad_inputs_are_refused() {
  TinyModel model(2);
  refuses<int64_t>(model, "header", 1, TinyModel::kLimits.max_num_tokens + 1);
  refuses<int64_t>(model, "header", 1, 0);
  refuses<int64_t>(model, "header", 2, 0);
  refuses<int64_t>(model, "header", 3, TinyModel::kLimits.max_num_rows + 1);
  refuses<int32_t>(model, "token_ids", 3, TinyModel::kVocab);
  refuses<int32_t>(model, "positions", 19, TinyModel::kMaxPosition);
  refuses<int32_t>(model, "positions", 4, 3);
  refuses<int32_t>(model, "query_start", 1, 21);
  refuses<int32_t>(model, "seq_lens", 0, 21);
  refuses<int64_t>(model, "slot_mapping", 5, -1);
  refuses<int64_t>(model, "slot_mapping", 5, int64_t{1} << 40);
  refuses<int32_t>(model, "block_tables", 1, 1 << 30);
  refuses<int32_t>(model, "row_tokens", 0, 20);
  refuses<int32_t>(model, "row_targets", 0, TinyModel::kVocab);
  refuses<int32_t>(model, "row_num_logprobs", 0, 3);
  refuses<int32_t>(model, "history_start", 20, 17);
  const Chunk chunk{1, 0, some_tokens(20, 2)};
  model.fill({&chunk, 1});
  CHECK(!is_refused(model), "a good step after bad ones");
}

void an_aborted_pool_runs_nothing() {
  TinyModel model(2);
  const Chunk chunk{1, 0, some_tokens(20, 2)};
  model.fill({&chunk, 1});
  model.pool->abort();
  try {
    model.program->run(model.input.data(), model.output.data());
    CHECK(false, "a step ran on an aborted pool");
  } catch (const std::runtime_error&) {
  }
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  threads_do_not_matter();
  laggards_do_not_matter();
  chunks_do_not_matter();
  many_tiny_steps_end();
  pieces_equal_the_whole();
  starting_and_finishing_equals_running();
  a_step_that_is_not_finished_gives_way_to_the_next();
  blocks_are_copied_first();
  steps_do_not_allocate();
  bad_inputs_are_refused();
  an_aborted_pool_runs_nothing();
}
