// SPDX-License-Identifier: Apache-2.0
// spillway profile without a model: the machine, as spillway plan wants to know it.
#pragma once

#include <filesystem>
#include <string>

#include "cli/session.h"

namespace spillway {

inline constexpr double kProfileSeconds = 45;

// With a progress bar. `device`: null where the host computes.
Hardware measure_this_machine(Device& host, Device* device, const std::filesystem::path& disk_dir,
                              double seconds);

struct ProfileMachineOptions {
  const SessionOptions& session;  // the device, the threads, the disk's folder
  std::string output;             // "" = the file in the cache
  double seconds = kProfileSeconds;
  bool json = false;
};

// Measures, prints, keeps. Returns the exit code.
int profile_machine(const ProfileMachineOptions& options);

}  // namespace spillway
