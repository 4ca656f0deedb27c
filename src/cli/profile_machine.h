// SPDX-License-Identifier: Apache-2.0
// spillway profile without a model: measures the machine for spillway plan.
#pragma once

#include <string>

#include "engine/measure_this_machine.h"
#include "engine/session_options.h"

namespace spillway {

struct ProfileMachineOptions {
  const SessionOptions& session;  // its device, threads and disk folder are used
  std::string output;             // "" = the file in the cache
  double seconds = kProfileSeconds;
  bool json = false;
};

// Measures, prints and stores the results. Returns the exit code.
int profile_machine(const ProfileMachineOptions& options);

}  // namespace spillway
