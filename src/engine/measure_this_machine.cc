// SPDX-License-Identifier: Apache-2.0
#include "engine/measure_this_machine.h"

#include <fmt/chrono.h>

#include <ctime>
#include <string_view>

#include "measure/measure_machine.h"
#include "storage/async_io.h"

namespace spillway {

Hardware measure_this_machine(Device& host, Device* device, const std::filesystem::path& disk_dir,
                              double seconds, const SessionServices& services) {
  IoQueue disk;
  const auto progress = start_progress(services.progress, "measuring");
  MeasureMachineOptions measure;
  measure.seconds = seconds;
  measure.disk_dir = disk_dir;
  measure.cancel = services.cancel;
  measure.progress = [&](double share, std::string_view what) {
    progress->update(static_cast<uint64_t>(share * 1000), 1000, what);
  };
  Hardware hardware = measure_machine(host, device, disk, measure);
  hardware.measured = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  return hardware;
}

}  // namespace spillway
