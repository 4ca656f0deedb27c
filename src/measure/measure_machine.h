// SPDX-License-Identifier: Apache-2.0
// Measures a machine for the planner: processors, links and disk (plan/hardware.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "device/device.h"
#include "measure/link_rates.h"
#include "measure/measure_pace.h"
#include "measure/processor_rates.h"
#include "plan/hardware.h"
#include "storage/async_io.h"

namespace spillway {

struct MeasureMachineOptions {
  double seconds = 45;  // approximately; the necessary minimum is measured in any case
  std::filesystem::path disk_dir;
  uint64_t disk_bytes = uint64_t{1} << 30;   // size of the file in that folder
  std::optional<ProcessorSizes> sizes = {};  // for both processors; by default sizes_for() each
  size_t largest_transfer = size_t{64} << 20;
  const std::atomic<bool>* cancel = nullptr;  // if set to true, measuring soon throws kCancelled
  MeasurePace::Progress progress = {};
};

// Measures `host` and `device` (null if ops run on the host). Everything goes through Device and
// its Ops, so that an emulated accelerator is measured like a GPU. Uses memory and a file while it
// runs and leaves nothing. Throws kOutOfMemory, kIo, kCancelled.
Hardware measure_machine(Device& host, Device* device, IoQueue& disk,
                         const MeasureMachineOptions& options);

}  // namespace spillway
