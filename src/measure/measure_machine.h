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
  double seconds = 45;  // about; the least that has to be known is measured in any case
  std::filesystem::path disk_dir;
  uint64_t disk_bytes = uint64_t{1} << 30;   // of the file there
  std::optional<ProcessorSizes> sizes = {};  // of either processor; none: what suits each
  size_t largest_transfer = size_t{64} << 20;
  const std::atomic<bool>* cancel = nullptr;  // set to true: throws kCancelled soon
  MeasurePace::Progress progress = {};
};

// `device`: null where ops run on the host. Everything through Device and its Ops, so that an
// emulated accelerator is measured as a GPU is. Takes memory and a file while it runs, leaves
// nothing. Throws kOutOfMemory, kIo, kCancelled.
Hardware measure_machine(Device& host, Device* device, IoQueue& disk,
                         const MeasureMachineOptions& options);

}  // namespace spillway
