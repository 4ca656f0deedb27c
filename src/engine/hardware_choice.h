// SPDX-License-Identifier: Apache-2.0
// Chooses the machine that is planned for: one that is named, this one as it was measured, or the
// nearest of those that Spillway ships with. Nothing is measured here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "device/device.h"
#include "engine/device_factory.h"
#include "plan/device_traits.h"
#include "plan/hardware.h"

namespace spillway {

// Returns $XDG_CACHE_HOME/spillway/hardware.json, or nullopt if there is no cache.
[[nodiscard]] std::optional<std::filesystem::path> try_default_hardware_path();

struct ChosenHardware {
  Hardware hardware;
  std::string how;  // where its figures are from, as text for people
  // The traits of this machine's CPU if that computes; not set if a GPU does, or for a machine that
  // was named.
  std::optional<DeviceTraits> traits = {};
  // For this machine: the host memory that is free now, which runs use if no option says how much.
  std::optional<uint64_t> free_host_bytes = {};
};

// Returns the machine that --hardware names; throws kInvalidArgument if there is none. An empty
// `file_or_name` means this machine, with the memory it has now. A kept file that is damaged is not
// used, with a warning; one of another processor or GPU is not used either. `device` is the value
// of --device, the device that computes there; cpu: the machine without its GPU. Throws
// kInvalidArgument for one that it does not have.
ChosenHardware choose_hardware(const std::string& file_or_name, const std::string& device,
                               const DeviceFactory& devices);
// Returns what `spillway profile` kept of this very machine. Times of linear layers that CPU and
// GPU share (Hardware::splits) are left out if the machine has another number of threads now.
std::optional<Hardware> try_measured_here(const DeviceInfo& host, const DeviceInfo* gpu);
// Replaces the file; throws kIo.
void write_hardware_file(const std::filesystem::path& path, const Hardware& hardware);
// Returns choose_hardware() of this machine, for devices that are made already: the host with the
// threads that it has.
ChosenHardware this_machine(const DeviceInfo& host, const DeviceInfo* gpu);

}  // namespace spillway
