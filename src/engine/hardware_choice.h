// SPDX-License-Identifier: Apache-2.0
// Which machine is planned for: one that is named, this one as it was measured, or the nearest
// that ships. Nothing is measured here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "device/device.h"
#include "engine/device_factory.h"
#include "plan/device_traits.h"
#include "plan/hardware.h"

namespace spillway {

// $XDG_CACHE_HOME/spillway/hardware.json, or nullopt where there is no cache.
[[nodiscard]] std::optional<std::filesystem::path> try_default_hardware_path();

struct ChosenHardware {
  Hardware hardware;
  std::string how;  // it was chosen, for people: where its figures are from
  // Of this machine's CPU where that computes; nothing: as of a machine that is not here.
  std::optional<DeviceTraits> traits = {};
  // Of this machine: what is free of its host memory now, which runs take where no option says how
  // much.
  std::optional<uint64_t> free_host_bytes = {};
};

// `file_or_name`: what --hardware says; throws kInvalidArgument for what is no machine. Empty: this
// machine, with the memory it has now. A kept file that is damaged is not used, with a warning; one
// of another processor or GPU is not used either. `device`: what computes there, as --device says
// it; cpu: the machine without its GPU. Throws kInvalidArgument for one that it does not have.
ChosenHardware choose_hardware(const std::string& file_or_name, const std::string& device,
                               const DeviceFactory& devices);
// What spillway profile kept of this very machine, with as many threads as it has now.
std::optional<Hardware> try_measured_here(const DeviceInfo& host, const DeviceInfo* gpu);
// Replaces the file; throws kIo.
void write_hardware_file(const std::filesystem::path& path, const Hardware& hardware);
// The latter, of devices that are there already: of the host with the threads that it has.
ChosenHardware this_machine(const DeviceInfo& host, const DeviceInfo* gpu);

}  // namespace spillway
