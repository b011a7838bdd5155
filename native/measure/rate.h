// How much work a number of threads do per second, each repeating its own until time is up.
#pragma once
#include <functional>

namespace takt {

// Does a piece of work and returns how many units it was.
using Work = std::function<double()>;

// Units per second of all threads together, over about `seconds`. `make` is called in each thread
// before the clock starts, so that memory is touched first by whom it belongs to; what it throws is
// thrown to the caller. A thread whose core is taken away counts with what it did.
double work_rate(int num_threads, double seconds, const std::function<Work(int thread)>& make);

}  // namespace takt
