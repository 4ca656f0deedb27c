// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_load.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace spillway {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(250);
constexpr double kBusyShare = 0.05;
constexpr double kBusyProcessors = 0.15;
// A "cpu" line has the columns user nice system idle iowait irq softirq steal; guest time is part
// of user.
constexpr int kTimeColumns = 8, kIdleColumn = 3, kWaitingColumn = 4;

bool is_cpu_line(std::string_view line) { return line.starts_with("cpu"); }

std::optional<CpuTimes> try_read_cpu_times() {
  std::ifstream file("/proc/stat");
  std::ostringstream text;
  text << file.rdbuf();
  return try_parse_cpu_times(text.str());
}

}  // namespace

std::optional<CpuTimes> try_parse_cpu_times(std::string_view text) {
  CpuTimes times;
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || !line.starts_with("cpu ")) return std::nullopt;
  std::istringstream columns(line.substr(4));
  for (int column = 0; column < kTimeColumns; ++column) {
    uint64_t ticks = 0;
    if (!(columns >> ticks)) return std::nullopt;
    times.total += ticks;
    if (column != kIdleColumn && column != kWaitingColumn) times.busy += ticks;
  }
  while (std::getline(lines, line) && is_cpu_line(line)) ++times.processors;
  if (times.processors == 0) return std::nullopt;
  return times;
}

bool CpuLoad::disturbs_measuring() const {
  return busy_processors >= std::max(kBusyProcessors, kBusyShare * processors);
}

CpuLoad cpu_load(const CpuTimes& before, const CpuTimes& after) {
  CpuLoad load{.processors = after.processors};
  if (after.total > before.total && after.busy > before.busy)
    load.busy_processors = static_cast<double>(after.busy - before.busy) /
                           static_cast<double>(after.total - before.total) * after.processors;
  return load;
}

std::optional<CpuLoad> try_measure_cpu_load() {
  const auto before = try_read_cpu_times();
  if (!before) return std::nullopt;
  std::this_thread::sleep_for(kInterval);
  const auto after = try_read_cpu_times();
  if (!after) return std::nullopt;
  return cpu_load(*before, *after);
}

}  // namespace spillway
