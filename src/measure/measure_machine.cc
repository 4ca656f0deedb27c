// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_machine.h"

#include <fmt/format.h>

#include "base/error.h"
#include "measure/disk_rates.h"

namespace spillway {

Hardware measure_machine(Device& host, Device* device, IoQueue& disk,
                         const MeasureMachineOptions& options) {
  SPW_CHECK(options.seconds > 0, kInvalidArgument, "no time to measure in: {} s", options.seconds);
  MeasurePace pace(options.seconds, options.cancel, options.progress);
  Hardware hardware;
  // The disk is first because it may be refused.
  const DiskRates rates = measure_disk(disk, options.disk_dir, options.disk_bytes, pace, 0.2);
  hardware.disk_read = rates.read_bytes_per_s;
  hardware.disk_write = rates.write_bytes_per_s;
  hardware.disk_bytes = rates.free_bytes;
  const bool unified = device != nullptr && device->info().unified_memory;
  const bool links = device != nullptr && !unified;
  const auto sizes = [&](const Device& of) { return options.sizes.value_or(sizes_for(of)); };
  if (device != nullptr) {
    hardware.gpu = measure_processor(*device, sizes(*device), pace, 0.3);
    hardware.gpu->name = device->info().hardware;
  }
  hardware.host = measure_processor(host, sizes(host), pace, device != nullptr ? 0.35 : 0.8);
  hardware.host.name = host.info().hardware;
  hardware.host.threads = host.info().threads;
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
