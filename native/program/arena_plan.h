// Fixed places for intermediates, by liveness.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "program/value.h"

namespace takt {

// Sets `at[layout]` of every place, 64-byte aligned, and returns the arena's size. A piece of the
// arena is given to another place only if that is first written more than `distance` instructions
// after the former one's last use.
size_t plan_arena(std::span<Place> places, ArenaLayout layout, int distance);

// For each instruction, the last one that may touch memory that it overwrites; -1: none.
std::vector<int> reuse_barriers(std::span<const Place> places, ArenaLayout layout,
                                int num_instructions);

}  // namespace takt
