#include "program/arena_plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/activation.h"

namespace takt {

size_t plan_arena(std::span<Place> places, ArenaLayout layout, int distance) {
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Large places first: they leave the least waste when the small ones fill what is left.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return places[a].bytes[layout] > places[b].bytes[layout];
  });
  size_t arena_bytes = 0;
  std::vector<const Place*> placed, conflicts;
  for (const size_t index : order) {
    Place& place = places[index];
    place.at[layout] = 0;
    if (place.bytes[layout] == 0) continue;
    conflicts.clear();
    for (const Place* other : placed) {
      if (other->first <= place.last + distance && place.first <= other->last + distance) {
        conflicts.push_back(other);
      }
    }
    std::sort(conflicts.begin(), conflicts.end(),
              [&](const Place* a, const Place* b) { return a->at[layout] < b->at[layout]; });
    size_t at = 0;
    for (const Place* other : conflicts) {
      if (at + place.bytes[layout] <= other->at[layout]) break;
      at = std::max(at, align64(other->at[layout] + other->bytes[layout]));
    }
    place.at[layout] = at;
    arena_bytes = std::max(arena_bytes, at + place.bytes[layout]);
    placed.push_back(&place);
  }
  return align64(arena_bytes);
}

std::vector<int> reuse_barriers(std::span<const Place> places, ArenaLayout layout,
                                int num_instructions) {
  std::vector<int> barriers(size_t(num_instructions), -1);
  for (const Place& place : places) {
    for (const Place& older : places) {
      if (older.last >= place.first) continue;
      const size_t a = place.at[layout], b = older.at[layout];
      if (a < b + older.bytes[layout] && b < a + place.bytes[layout]) {
        int& barrier = barriers[size_t(place.first)];
        barrier = std::max(barrier, older.last);
      }
    }
  }
  return barriers;
}

}  // namespace takt
