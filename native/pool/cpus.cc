#include "pool/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace takt {
namespace {

namespace fs = std::filesystem;

// CPUs of one `cpu.max` ("max 100000" or "150000 100000"); 0 if it is absent or unlimited.
int quota_v2(const fs::path& file) {
  std::ifstream in(file);
  std::string quota;
  double period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(1, int(std::ceil(std::atof(quota.c_str()) / period)));
}

int quota_v1(const fs::path& directory) {
  double quota = -1, period = 0;
  if (!(std::ifstream(directory / "cpu.cfs_quota_us") >> quota)) return 0;
  if (!(std::ifstream(directory / "cpu.cfs_period_us") >> period)) return 0;
  if (quota <= 0 || period <= 0) return 0;
  return std::max(1, int(std::ceil(quota / period)));
}

// The path of this process' cgroup in the hierarchy that `controller` names ("" is version 2).
std::string own_cgroup(const fs::path& root, const std::string& controller) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names == ",," ? controller.empty() : names.find("," + controller + ",") < names.size()) {
      return line.substr(second + 1);
    }
  }
  return "/";
}

void tighten(int& limit, int quota) {
  if (quota > 0) limit = limit == 0 ? quota : std::min(limit, quota);
}

}  // namespace

int num_affinity_cpus() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

int num_quota_cpus(const fs::path& root) {
  int limit = 0;
  const fs::path v2 = root / "sys/fs/cgroup";
  // A container sees its own cgroup as the root; on a host the process may lie several levels deep,
  // and a limit at any level above it holds.
  fs::path relative = fs::path(own_cgroup(root, "")).relative_path();
  for (;; relative = relative.parent_path()) {
    tighten(limit, quota_v2(v2 / relative / "cpu.max"));
    if (relative.empty()) break;
  }
  relative = fs::path(own_cgroup(root, "cpu")).relative_path();
  for (;; relative = relative.parent_path()) {
    tighten(limit, quota_v1(v2 / "cpu" / relative));
    if (relative.empty()) break;
  }
  return limit;
}

int num_usable_cpus() {
  const int affinity = num_affinity_cpus(), quota = num_quota_cpus();
  return quota > 0 ? std::min(affinity, quota) : affinity;
}

}  // namespace takt
