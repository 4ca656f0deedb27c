// SPDX-License-Identifier: Apache-2.0
// How busy the machine's processors are.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

// Time of all processors together since the machine started, in ticks.
struct CpuTimes {
  uint64_t busy = 0;
  uint64_t total = 0;
  int processors = 0;
};

// Reads the text of /proc/stat; nullopt where it is something else.
[[nodiscard]] std::optional<CpuTimes> try_parse_cpu_times(std::string_view text);

struct CpuLoad {
  double busy_processors = 0;  // on average
  int processors = 0;

  // So much that what is measured beside it comes out too slow: a twentieth of the machine, and
  // more than the little that an idle system does.
  bool disturbs_measuring() const;
};

// Between two readings.
CpuLoad cpu_load(const CpuTimes& before, const CpuTimes& after);

// Waits for a quarter of a second, in which this thread does nothing. nullopt where the system does
// not say.
[[nodiscard]] std::optional<CpuLoad> try_measure_cpu_load();

}  // namespace spillway
