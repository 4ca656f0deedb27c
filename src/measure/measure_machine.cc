// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_machine.h"

#include <fmt/format.h>

#include "base/error.h"
#include "measure/disk_rates.h"

namespace spillway {

std::string processor_label(const DeviceInfo& info) {
  // How many threads compute is part of what the host is; a GPU always has all it has.
  if (info.name != "cpu") return info.hardware;
  return fmt::format("{}, {} thread{}", info.hardware, info.threads, info.threads == 1 ? "" : "s");
}

Hardware measure_machine(Device& host, Device* device, IoQueue& disk,
                         const MeasureMachineOptions& options) {
  SPW_CHECK(options.seconds > 0, kInvalidArgument, "no time to measure in: {} s", options.seconds);
  MeasurePace pace(options.seconds, options.cancel, options.progress);
  Hardware hardware;
  // First, as it is what may be refused.
  const DiskRates rates = measure_disk(disk, options.disk_dir, options.disk_bytes, pace, 0.2);
  hardware.disk_read = rates.read_bytes_per_s;
  hardware.disk_write = rates.write_bytes_per_s;
  hardware.disk_bytes = rates.free_bytes;
  const bool unified = device != nullptr && device->info().unified_memory;
  const bool links = device != nullptr && !unified;
  const auto sizes = [&](const Device& of) { return options.sizes.value_or(sizes_for(of)); };
  if (device != nullptr) {
    hardware.gpu = measure_processor(*device, sizes(*device), pace, 0.3);
    hardware.gpu->name = processor_label(device->info());
  }
  hardware.host = measure_processor(host, sizes(host), pace, device != nullptr ? 0.35 : 0.8);
  hardware.host.name = processor_label(host.info());
  hardware.unified = unified;
  hardware.name = hardware.device().name;
  if (links)
    measure_links(host, *device, {options.largest_transfer, sizes(host).kv_bytes}, pace, 0.15,
                  hardware);
  hardware.source = fmt::format(
      "Measured by spillway profile. Attention with one query head for each head of keys; the disk "
      "{} the page cache",
      rates.direct ? "past" : "through");
  return hardware;
}

}  // namespace spillway
