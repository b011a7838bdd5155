// CPUs as cgroups of both versions limit them, under a made-up root.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "pool/cpus.h"
#include "tests/check.h"

namespace takt::test {
namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root() : path_(fs::temp_directory_path() / ("takt_cpus_" + std::to_string(getpid()))) {}
  ~Root() { fs::remove_all(path_); }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  int num_cpus() const { return num_quota_cpus(path_); }

 private:
  fs::path path_;
};

void without_a_limit_there_is_none() {
  const Root root;
  CHECK(root.num_cpus() == 0);
  root.write("proc/self/cgroup", "0::/a/b\n");
  root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(root.num_cpus() == 0);
}

void the_tightest_level_holds() {
  const Root root;
  root.write("proc/self/cgroup", "0::/a/b\n");
  root.write("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  CHECK(root.num_cpus() == 8);
  root.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  CHECK(root.num_cpus() == 2, "one and a half CPUs need two threads, not %d", root.num_cpus());
  root.write("sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
  CHECK(root.num_cpus() == 1);
}

void a_container_is_its_own_root() {
  const Root root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  CHECK(root.num_cpus() == 3);
}

void version_one_is_read_too() {
  const Root root;
  root.write("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/jobs/7\n");
  root.write("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
  CHECK(root.num_cpus() == 0);
  root.write("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "400000\n");
  CHECK(root.num_cpus() == 4);
}

}  // namespace
}  // namespace takt::test

int main() {
  using namespace takt::test;
  without_a_limit_there_is_none();
  the_tightest_level_holds();
  a_container_is_its_own_root();
  version_one_is_read_too();
  CHECK(takt::num_usable_cpus() >= 1 && takt::num_usable_cpus() <= takt::num_affinity_cpus());
}
