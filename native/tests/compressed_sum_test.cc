// Compressed all-reduces between threads that stand for ranks: their error, and equal bits.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "kernels/linear.h"
#include "measure/all_reduce_cost.h"
#include "parallel/compressed_sum.h"
#include "program/memory.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt::test {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr Payload kCompressed[] = {Payload::kBF16, Payload::kF16, Payload::kInt8};

template <class Body>
void run_ranks(int num_ranks, Body body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& t : threads) t.join();
}

// Each rank's sums of rows [0, 1), [1, 2), ... of `terms`, one collective for each.
std::vector<Rows> reduced(Payload payload, int num_ranks, const std::vector<Rows>& terms,
                          int64_t spin_ns) {
  const size_t width = terms[0][0].size();
  const Memory memory(Communicator::bytes(num_ranks, width * sizeof(float)));
  const std::atomic<uint32_t> abort{0};
  std::vector<Rows> sums(terms);
  run_ranks(num_ranks, [&](int rank) {
    Communicator group(memory.data(), &abort, rank, num_ranks, width * sizeof(float), spin_ns,
                       payload);
    for (std::vector<float>& row : sums[size_t(rank)]) {
      CHECK(group.all_reduce(row.data(), int64_t(width)));
    }
  });
  return sums;
}

// terms[rank][row][column], of very different sizes.
std::vector<Rows> some_terms(int num_ranks, int num_rows, int64_t width) {
  Random random(uint64_t(width) + 7);
  std::vector<Rows> terms(static_cast<size_t>(num_ranks), Rows(static_cast<size_t>(num_rows)));
  for (Rows& rows : terms) {
    for (std::vector<float>& row : rows) {
      for (int64_t i = 0; i < width; ++i) {
        row.push_back(random.between(-1, 1) * std::exp2(random.between(-12, 8)));
      }
    }
  }
  return terms;
}

// Half of an int8 step of the group that holds `column`.
template <class Value>
double half_step(Value value_at, int64_t column) {
  double largest = 0;
  for (int64_t i = column / 32 * 32; i < column / 32 * 32 + 32; ++i) {
    largest = std::max(largest, std::abs(double(value_at(i))));
  }
  return largest / 254;
}

// The bound of compressed_sum.h. Products of two roundings, and those of float32 sums, are below a
// hundredth of it.
double bound(Payload payload, const std::vector<Rows>& terms, size_t row, int64_t column) {
  const auto sum_at = [&](int64_t i) {
    double sum = 0;
    for (const Rows& rows : terms) sum += rows[row][size_t(i)];
    return sum;
  };
  double result = 0, magnitude = 0;
  for (const Rows& rows : terms) {
    magnitude += std::abs(rows[row][size_t(column)]);
    result += half_step([&](int64_t i) { return rows[row][size_t(i)]; }, column);
  }
  if (payload == Payload::kInt8) return 1.02 * (result + half_step(sum_at, column)) + 1e-6;
  const double relative = payload == Payload::kBF16 ? 0x1p-8 : 0x1p-11;
  const double steps = payload == Payload::kF16 ? double(terms.size() + 1) * 0x1p-25 : 0.0;
  return 1.01 * relative * (magnitude + std::abs(sum_at(column))) + steps;
}

void test_errors_and_bits(Payload payload, int num_ranks, int64_t width, int64_t spin_ns) {
  const std::vector<Rows> terms = some_terms(num_ranks, 40, width);
  const std::vector<Rows> sums = reduced(payload, num_ranks, terms, spin_ns);
  double largest_share = 0;
  for (size_t row = 0; row < sums[0].size(); ++row) {
    for (int rank = 1; rank < num_ranks; ++rank) {
      CHECK(std::memcmp(sums[size_t(rank)][row].data(), sums[0][row].data(),
                        size_t(width) * sizeof(float)) == 0,
            "rank %d has other bits in row %zu", rank, row);
    }
    for (int64_t i = 0; i < width; ++i) {
      double exact = 0;
      for (const Rows& rows : terms) exact += rows[row][size_t(i)];
      const double error = std::abs(sums[0][row][size_t(i)] - exact);
      const double most = bound(payload, terms, row, i);
      CHECK(error <= most, "payload %d, row %zu, column %d", int(payload), row, int(i));
      largest_share = std::max(largest_share, error / most);
    }
  }
  CHECK(largest_share > 0.2, "nothing was rounded: %g", largest_share);
}

// A row's sum is the same whatever travels beside it, and wherever it begins in the slots.
void test_rows_of_one_collective(Payload payload) {
  constexpr int kRanks = 3, kRows = 5;
  constexpr int64_t kWidth = 96;
  const std::vector<Rows> terms = some_terms(kRanks, kRows, kWidth);
  const std::vector<Rows> alone = reduced(payload, kRanks, terms, 0);
  const size_t row_bytes = kWidth * sizeof(float);
  const Memory memory(Communicator::bytes(kRanks, kRows * row_bytes));
  const std::atomic<uint32_t> abort{0};
  run_ranks(kRanks, [&](int rank) {
    Communicator group(memory.data(), &abort, rank, kRanks, kRows * row_bytes, 0, payload);
    const uint64_t n = group.next_transfer();
    const auto row = [&](int i) { return CompressedSum(group, n, size_t(i) * row_bytes, kWidth); };
    std::vector<float> scratch(kWidth);
    CHECK(group.wait_writable(n));
    for (int i = 0; i < kRows; ++i) row(i).write(terms[size_t(rank)][size_t(i)].data());
    group.publish(n, 0);
    CHECK(group.wait_all_published(n, 0));
    for (int i = 0; i < kRows; ++i) row(i).sum_share(scratch.data());
    group.publish_sums(n, 0);
    CHECK(group.wait_all_sums(n, 0));
    for (int i = 0; i < kRows; ++i) {
      row(i).read(scratch.data());
      CHECK(scratch == alone[0][size_t(i)], "row %d", i);
    }
  });
}

void test_what_a_type_cannot_hold() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> first(32, 0.0f), second(32, 0.0f);
  first[0] = 1e6f;
  first[1] = second[1] = -50'000.0f;
  first[2] = nan;
  first[3] = 0x1p-24f;
  const std::vector<Rows> sums = reduced(Payload::kF16, 2, {{first}, {second}}, 0);
  for (const Rows& rows : sums) {
    CHECK(rows[0][0] == 65504.0f);
    CHECK(rows[0][1] == -65504.0f);
    CHECK(std::isnan(rows[0][2]));
    CHECK(rows[0][3] == 0x1p-24f);
    CHECK(rows[0][4] == 0.0f);
  }
  for (const Payload payload : kCompressed) {
    CHECK(std::isnan(reduced(payload, 2, {{first}, {second}}, 0)[1][0][2]));
  }
}

// A rank that is gone ends both waits.
void test_abort(Payload payload) {
  const Memory memory(Communicator::bytes(2, 128));
  std::atomic<uint32_t> abort{0};
  std::vector<float> values(32, 1.0f);
  std::thread other([&] {
    Communicator group(memory.data(), &abort, 1, 2, 128, 0, payload);
    const uint64_t n = group.next_transfer();
    CHECK(group.wait_writable(n));
    CompressedSum(group, n, 0, 32).write(values.data());
    group.publish(n, 0);  // and no sums
    abort = 1;
  });
  std::vector<float> mine(32, 1.0f);
  Communicator group(memory.data(), &abort, 0, 2, 128, 0, payload);
  CHECK(!group.all_reduce(mine.data(), 32));
  other.join();
}

void test_names_and_costs() {
  CHECK(payload_of("int8") == Payload::kInt8 && payload_of("float32") == Payload::kF32);
  int num_refused = 0;
  const auto refused = [&](const auto& call) {
    try {
      call();
    } catch (const std::invalid_argument&) {
      ++num_refused;
    }
  };
  refused([] { payload_of("fp4"); });
  refused([] { all_reduce_ns({0}, Payload::kF32, 32, 1); });
  refused([] { all_reduce_ns({0, -1}, Payload::kF32, 32, 1); });
  refused([] { all_reduce_ns({0, 0}, Payload::kInt8, 33, 1); });
  refused([] { all_reduce_ns({0, 0}, Payload::kInt8, 32, 0); });
  CHECK(num_refused == 5);
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt;
  using namespace takt::test;
  for (const char* isa : available_isas()) {
    select_isa(isa);
    for (const Payload payload : kCompressed) test_errors_and_bits(payload, 2, 96, 0);
    test_what_a_type_cannot_hold();
  }
  for (const Payload payload : kCompressed) {
    for (const int64_t spin_ns : {0, 20'000}) {
      for (const int num_ranks : {1, 2, 3, 4}) {
        test_errors_and_bits(payload, num_ranks, 32, spin_ns);
        test_errors_and_bits(payload, num_ranks, 576, spin_ns);
      }
    }
    test_rows_of_one_collective(payload);
    test_abort(payload);
  }
  test_names_and_costs();
}
