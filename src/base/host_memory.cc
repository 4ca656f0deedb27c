// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {
namespace {

// Returns the first line "key: 123 kB" of a /proc file in bytes; 0 where there is none.
int64_t kib_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t digits = line.find_first_of("0123456789", key.size());
    if (!line.starts_with(key) || digits == std::string::npos) continue;
    int64_t kib = 0;
    std::from_chars(line.data() + digits, line.data() + line.size(), kib);
    return kib > std::numeric_limits<int64_t>::max() / 1024 ? 0 : kib * 1024;
  }
  return 0;
}

// Returns the number after `key` (or the first one, for an empty key) in a file of a control group;
// nullopt where there is none: no such file, or "max".
std::optional<int64_t> try_cgroup_value(const char* path, std::string_view key = "") {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (!key.empty() && word != key) continue;
    if (!key.empty() && !(file >> word)) break;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error == std::errc()) return value;
    break;
  }
  return std::nullopt;
}

}  // namespace

HostMemory host_memory() {
  HostMemory memory{kib_value("/proc/meminfo", "MemTotal"),
                    kib_value("/proc/meminfo", "MemAvailable"),
                    kib_value("/proc/self/status", "RssAnon")};
  // A container's limit counts as the machine's memory; its page cache can be reclaimed.
  const auto limit = try_cgroup_value("/sys/fs/cgroup/memory.max");
  const auto used = try_cgroup_value("/sys/fs/cgroup/memory.current");
  if (limit && used && *limit < memory.total_bytes) {
    const int64_t cache =
        try_cgroup_value("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
    memory.total_bytes = *limit;
    memory.available_bytes = std::min(memory.available_bytes, *limit - *used + cache);
  }
  return memory;
}

void give_free_memory_back() { malloc_trim(0); }

// Without this, glibc raises its threshold for mapping blocks each time a mapped block is freed, up
// to 32 MiB.
void give_large_blocks_back() { mallopt(M_MMAP_THRESHOLD, 4 << 20); }

}  // namespace spillway
