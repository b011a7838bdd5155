// What an all-reduce costs between CPUs, by payload.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/payload.h"

namespace takt {

// Nanoseconds of an all-reduce of `num_values` between threads of this process, one on each of
// `cpus`, which spin: the median of `num_rounds`. Throws std::invalid_argument for fewer than two
// CPUs, a CPU that this thread may not use, no rounds, or a number of values that is not a positive
// multiple of kPayloadGroup.
double all_reduce_ns(const std::vector<int>& cpus, Payload payload, int64_t num_values,
                     int num_rounds);

}  // namespace takt
