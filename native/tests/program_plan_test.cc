// Places of intermediates never overlap while both are in use, barriers name the last user of what
// is overwritten, and tiles cover everything once.
#include <algorithm>
#include <vector>

#include "program/arena_plan.h"
#include "program/tiling.h"
#include "tests/check.h"
#include "tests/random.h"

namespace takt::test {
namespace {

std::vector<Place> random_places(Random& random, int num_instructions) {
  std::vector<Place> places(size_t(1 + random.below(60)));
  for (Place& p : places) {
    p = {{size_t(random.below(5) * 1000), size_t(random.below(5) * 70'000)}, {0, 0}, 0, 0};
    p.first = int(random.below(num_instructions));
    p.last = p.first + int(random.below(num_instructions - p.first));
  }
  return places;
}

bool overlap(const Place& a, const Place& b, ArenaLayout layout) {
  return a.at[layout] < b.at[layout] + b.bytes[layout] &&
         b.at[layout] < a.at[layout] + a.bytes[layout];
}

void places_in_use_do_not_overlap() {
  constexpr int kInstructions = 30;
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Place> places = random_places(random, kInstructions);
    const int distance = int(random.below(6));
    for (const ArenaLayout layout : {kFewRows, kManyRows}) {
      const size_t bytes = plan_arena(places, layout, distance);
      const std::vector<int> barriers = reuse_barriers(places, layout, kInstructions);
      size_t most_in_use = 0;
      for (int i = 0; i < kInstructions; ++i) {
        size_t in_use = 0;
        for (const Place& p : places) {
          if (p.first <= i && i <= p.last) in_use += p.bytes[layout];
        }
        most_in_use = std::max(most_in_use, in_use);
        const int barrier = barriers[size_t(i)];
        CHECK(barrier == -1 || barrier < i - distance, "round %d", round);
      }
      CHECK(bytes >= most_in_use);
      for (const Place& a : places) {
        CHECK(a.at[layout] % 64 == 0 && a.at[layout] + a.bytes[layout] <= bytes);
        for (const Place& b : places) {
          if (&a == &b || !overlap(a, b, layout)) continue;
          const Place &older = a.first < b.first ? a : b, &newer = a.first < b.first ? b : a;
          CHECK(older.last + distance < newer.first, "round %d", round);
          CHECK(barriers[size_t(newer.first)] >= older.last, "round %d", round);
        }
      }
    }
  }
}

void tiles_cover(const TileGrid& grid, int64_t align) {
  std::vector<int> covered(size_t(grid.num_rows * grid.num_cols));
  for (int tile = 0; tile < grid.num_tiles(); ++tile) {
    const TileRange r = tile_range(grid, tile);
    CHECK(r.num_rows() > 0 && r.num_cols() > 0 && r.col0 % align == 0);
    for (int row = r.row0; row < r.row1; ++row) {
      for (int64_t col = r.col0; col < r.col1; ++col) ++covered[size_t(row * grid.num_cols + col)];
    }
  }
  CHECK(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }));
}

void tiles_cover_everything_once() {
  for (const int threads : {1, 2, 7, 64}) {
    for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 300}) {
      tiles_cover(row_grid(rows, 40, threads), 1);
      for (const int64_t cols : {16, 48, 576, 1000}) {
        const TileGrid grid = product_grid(rows, cols, 576, 16, threads);
        tiles_cover(grid, 16);
        CHECK(grid.rows_per_tile <= kMaxProductRows);
      }
    }
  }
  CHECK(product_grid(0, 576, 576, 32, 2).num_tiles() == 0);
}

void single_rows_use_all_threads() {
  for (const int threads : {2, 4, 8}) {
    CHECK(product_grid(1, 576, 576, 32, threads).num_tiles() >= threads);
    // A vocabulary is cut finely enough that its last tile is short.
    CHECK(product_grid(1, 49'152, 576, 16, threads).num_tiles() >= 100);
  }
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  places_in_use_do_not_overlap();
  tiles_cover_everything_once();
  single_rows_use_all_threads();
}
