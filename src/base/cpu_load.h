// SPDX-License-Identifier: Apache-2.0
// Measures how busy the machine's processors are.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

// The time of all processors together since the machine started, in ticks.
struct CpuTimes {
  uint64_t busy = 0;
  uint64_t total = 0;
  int processors = 0;
};

// Reads the text of /proc/stat; returns nullopt for any other text.
[[nodiscard]] std::optional<CpuTimes> try_parse_cpu_times(std::string_view text);

struct CpuLoad {
  double busy_processors = 0;  // on average
  int processors = 0;

  // Returns whether measurements beside this load would come out too slow: if it is at least a
  // twentieth of the machine, and more than the little that an idle system does.
  bool disturbs_measuring() const;
};

// Returns the load between two readings.
CpuLoad cpu_load(const CpuTimes& before, const CpuTimes& after);

// Measures for a quarter of a second, in which this thread sleeps. Returns nullopt where the system
// does not report processor times.
[[nodiscard]] std::optional<CpuLoad> try_measure_cpu_load();

}  // namespace spillway
