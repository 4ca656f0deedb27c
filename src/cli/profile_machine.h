// SPDX-License-Identifier: Apache-2.0
// spillway profile without a model: the machine, as spillway plan wants to know it.
#pragma once

#include <string>

#include "engine/measure_this_machine.h"
#include "engine/session_options.h"

namespace spillway {

struct ProfileMachineOptions {
  const SessionOptions& session;  // the device, the threads, the disk's folder
  std::string output;             // "" = the file in the cache
  double seconds = kProfileSeconds;
  bool json = false;
};

// Measures, prints, keeps. Returns the exit code.
int profile_machine(const ProfileMachineOptions& options);

}  // namespace spillway
