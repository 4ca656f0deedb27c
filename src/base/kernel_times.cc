// SPDX-License-Identifier: Apache-2.0
#include "base/kernel_times.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace spillway {

RunDelay RunDelay::of_this_thread() {
  RunDelay delay;
  delay.file_ = FileDescriptor(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  return delay;
}

std::optional<int64_t> RunDelay::try_nanoseconds() const {
  // The file has "ran waited slices", the first two in nanoseconds: time on a processor, and time
  // spent waiting for one.
  char text[96];
  const ssize_t size = file_.is_open() ? pread(file_.get(), text, sizeof(text) - 1, 0) : -1;
  if (size <= 0) return std::nullopt;
  text[size] = '\0';
  long long ran = 0, waited = 0;
  if (std::sscanf(text, "%lld %lld", &ran, &waited) != 2) return std::nullopt;
  return waited;
}

std::optional<double> try_idle_seconds(std::span<const int> cpus,
                                       const std::filesystem::path& stat) {
  std::ifstream file(stat);
  double ticks = 0;
  size_t found = 0;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    // A line is "cpu0 user nice system idle iowait ...", and idle time is the last two of these.
    int cpu = 0;
    unsigned long long idle = 0, for_disk = 0;
    if (std::sscanf(line.c_str(), "cpu%d %*u %*u %*u %llu %llu", &cpu, &idle, &for_disk) != 3 ||
        std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) {
      continue;
    }
    ticks += static_cast<double>(idle + for_disk);
    ++found;
  }
  if (cpus.empty() || found != cpus.size()) return std::nullopt;
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace spillway
