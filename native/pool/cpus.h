// How many CPUs this process may use.
#pragma once
#include <filesystem>

namespace takt {

// CPUs in the calling thread's affinity mask.
int num_affinity_cpus();

// CPUs that the cgroup's quota allows, rounded up; 0 if it sets no limit. Reads version 2
// (`cpu.max`, of this cgroup and those above it) and version 1 (`cpu.cfs_quota_us`) under `root`.
int num_quota_cpus(const std::filesystem::path& root = "/");

// The lesser of the two: threads that can run at once.
int num_usable_cpus();

}  // namespace takt
