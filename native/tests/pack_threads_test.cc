// Packing by several threads gives the bytes that one thread gives.
#include <algorithm>
#include <optional>

#include "kernels/linear.h"
#include "tests/check.h"
#include "tests/linear_reference.h"

namespace takt::test {
namespace {

constexpr int64_t kRows = 150, kColumns = 256;

void threads_do_not_matter(QuantType type, std::optional<QuantType> target) {
  std::mt19937 rng(17 + unsigned(type));
  const RandomMatrix raw(type, kRows, kColumns, rng);
  RawMatrix view = raw.view();
  view.packed_type = target;
  const RawMatrix parts[] = {view, view};
  const auto one = pack_weight(parts, nullptr, 1);
  const auto expected = one->memory_of_rows(0, 2 * kRows);
  CHECK(!expected.empty());
  for (const int num_threads : {2, 3, 40}) {
    const auto w = pack_weight(parts, nullptr, num_threads);
    const auto memory = w->memory_of_rows(0, 2 * kRows);
    CHECK(std::equal(memory.begin(), memory.end(), expected.begin(), expected.end()),
          "type %d by %d threads", int(type), num_threads);
  }
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt;
  for (const QuantType type : test::kAllTypes) {
    test::threads_do_not_matter(type, std::nullopt);
    if (type != QuantType::kQ8_0) test::threads_do_not_matter(type, QuantType::kQ8_0);
  }
}
