// SPDX-License-Identifier: Apache-2.0
// Measures how CPU and GPU share the linear layers of a model on this machine, and keeps that in
// the machine's file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/session_services.h"
#include "model/model.h"
#include "plan/hardware.h"

namespace spillway {

// Measures the ops of `model` that `hardware` does not know yet (all of them if `again`), reports
// its progress, and writes what is then known to `file`. Returns the curves of this model's ops.
std::vector<SplitCurve> profile_splits(Device& host, Device& device, const Model& model,
                                       const std::string& name, bool again, Hardware& hardware,
                                       const std::filesystem::path& file,
                                       const SessionServices& services);

}  // namespace spillway
