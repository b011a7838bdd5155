// How fast threads read memory, by the size of what they read again and again.
#pragma once
#include <cstdint>

namespace takt {

// Bytes per second of `num_threads` threads that each read their equal share of `num_bytes`, pass
// after pass, with the widest loads of the CPU. A share of a few KB lies in the first cache, one of
// hundreds of MB in memory. Throws std::invalid_argument if a share has less than 4 KiB, and
// std::bad_alloc.
double read_bandwidth(int64_t num_bytes, int num_threads, double seconds);

}  // namespace takt
