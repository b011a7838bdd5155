// Collectives and channels between threads that stand for ranks, with random delays.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "parallel/channel.h"
#include "parallel/communicator.h"
#include "parallel/signal.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt::test {
namespace {

constexpr int64_t kCount = 300;
constexpr int kRounds = 400;

// Zeroed memory on cache lines.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : lines_(bytes / sizeof(Line) + 1) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }

 private:
  struct alignas(64) Line {
    uint64_t words[8] = {};
  };
  std::vector<Line> lines_;
};

void stay_a_while(Random& random) {
  if (random.between(0, 1) < 0.05f) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

float value(int rank, int round, int64_t i) {
  return float((rank * 7919 + round * 104729 + i * 31) % 1000) / 7.0f;
}

template <class Body>
void run_ranks(int num_ranks, Body body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& t : threads) t.join();
}

// Sums and gathers in any order: a rank that is ahead never overwrites what another still reads.
void test_collectives(int num_ranks, int64_t spin_ns) {
  SharedMemory memory(Communicator::bytes(num_ranks, kCount * 4));
  std::atomic<uint32_t> abort{0};
  run_ranks(num_ranks, [&](int rank) {
    Communicator group(memory.data(), &abort, rank, num_ranks, kCount * 4, spin_ns);
    Random random(uint64_t(rank) + 1);
    std::vector<float> values(kCount), all(size_t(kCount * num_ranks));
    for (int round = 0; round < kRounds; ++round) {
      for (int64_t i = 0; i < kCount; ++i) values[size_t(i)] = value(rank, round, i);
      stay_a_while(random);
      if (round % 7 < 3) {
        CHECK(group.gather(values.data(), kCount, all.data()));
        for (int64_t i = 0; rank == 0 && i < kCount * num_ranks; ++i) {
          CHECK(all[size_t(i)] == value(int(i / kCount), round, i % kCount), "round %d", round);
        }
        continue;
      }
      CHECK(group.all_reduce(values.data(), kCount));
      for (int64_t i = 0; i < kCount; ++i) {
        float sum = value(0, round, i);
        for (int r = 1; r < num_ranks; ++r) sum += value(r, round, i);
        CHECK(values[size_t(i)] == sum, "round %d of rank %d", round, rank);
      }
    }
  });
}

// Lanes of one collective are written and read by several threads of a rank.
void test_lanes() {
  constexpr int kRanks = 2, kThreads = 2, kLanes = Communicator::kMaxLanes;
  SharedMemory memory(Communicator::bytes(kRanks, kLanes * 4));
  std::atomic<uint32_t> abort{0};
  run_ranks(kRanks, [&](int rank) {
    Communicator group(memory.data(), &abort, rank, kRanks, kLanes * 4, 0);
    for (uint64_t round = 1; round <= kRounds / 4; ++round) {
      const uint64_t n = group.next_transfer();
      CHECK(n == round);
      std::atomic<int> next{0};
      run_ranks(kThreads, [&](int) {
        for (int lane; (lane = next.fetch_add(1)) < kLanes;) {
          CHECK(group.wait_writable(n));
          reinterpret_cast<float*>(group.slot(rank, n))[lane] = value(rank, int(n), lane);
          group.publish(n, lane);
          CHECK(group.wait_all_published(n, lane));
          float sum;
          sum_slots(group, n, size_t(lane) * 4, 1, &sum);
          CHECK(sum == value(0, int(n), lane) + value(1, int(n), lane));
        }
      });
    }
  });
}

void test_channel(int num_slots, int64_t spin_ns) {
  SharedMemory memory(Channel::bytes(num_slots, kCount * 4));
  std::atomic<uint32_t> abort{0};
  run_ranks(2, [&](int rank) {
    Channel channel(memory.data(), &abort, num_slots, kCount * 4, spin_ns);
    Random random(uint64_t(rank) + 9);
    std::vector<float> values(kCount);
    for (int round = 0; round < kRounds; ++round) {
      stay_a_while(random);
      if (rank == 0) {
        for (int64_t i = 0; i < kCount; ++i) values[size_t(i)] = value(0, round, i);
        CHECK(channel.send(values.data(), kCount));
        continue;
      }
      CHECK(channel.receive(values.data(), kCount));
      for (int64_t i = 0; i < kCount; ++i) CHECK(values[size_t(i)] == value(0, round, i));
    }
  });
}

// An abort ends waits of every kind although nobody rings.
void test_abort() {
  SharedMemory memory(Communicator::bytes(2, 64)), ring(Channel::bytes(1, 64));
  SharedMemory counter(Signal::bytes());
  std::atomic<uint32_t> abort{0};
  float x = 1.0f, y = 1.0f;
  std::thread sum([&] {
    Communicator group(memory.data(), &abort, 0, 2, 64, 0);
    CHECK(!group.all_reduce(&x, 1));
    CHECK(group.is_aborted());
  });
  std::thread receiver([&] {
    Channel channel(ring.data(), &abort, 1, 64, 1000);
    CHECK(!channel.receive(&y, 1));
  });
  Signal signal(counter.data(), &abort, 0);
  std::thread waiter([&] { CHECK(!Signal(counter.data(), &abort, 0).wait(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  abort = 1;
  signal.wake();
  sum.join();
  receiver.join();
  waiter.join();
}

void test_signal() {
  SharedMemory memory(Signal::bytes());
  std::atomic<uint32_t> abort{0};
  run_ranks(3, [&](int rank) {
    Signal signal(memory.data(), &abort, rank == 1 ? 0 : 1000);
    for (uint64_t n = 1; n <= uint64_t(kRounds); ++n) {
      if (rank == 0) {
        signal.post(n);
      } else {
        CHECK(signal.wait(n));
      }
    }
  });
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  for (const int64_t spin_ns : {0, 20'000}) {
    for (const int num_ranks : {1, 2, 3, 4}) test_collectives(num_ranks, spin_ns);
    for (const int num_slots : {1, 2, 5}) test_channel(num_slots, spin_ns);
  }
  test_lanes();
  test_abort();
  test_signal();
}
