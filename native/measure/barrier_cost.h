// What it costs the pool's threads to come together between two instructions.
#pragma once

namespace takt {

// Median nanoseconds per instruction of steps with one tile for each thread, beyond the time of a
// tile: claims, publication and waiting. `spins` as in a pool that has its CPUs for itself; otherwise
// threads sleep at once. Throws std::invalid_argument if there are more threads than CPUs to spin on.
double barrier_cost_ns(int num_threads, bool spins, int num_steps);

}  // namespace takt
