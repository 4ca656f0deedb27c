// SPDX-License-Identifier: Apache-2.0
// Chooses the tuning file of a session: this machine's own, another, or none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "device/device.h"
#include "device/tuning.h"

namespace spillway {

// Returns $XDG_CACHE_HOME/spillway/tuning.json, or nullopt if there is no cache.
[[nodiscard]] std::optional<std::filesystem::path> try_default_tuning_path();

struct LoadedTuning {
  std::filesystem::path path;
  TuningTable table;
};

struct TuningOptions {
  std::string file;  // empty: the default one, where it exists
  bool off = false;
  bool measure = false;  // measures first what is not known yet

  // Returns what was measured on `device`; nullopt if there is nothing, or (with a warning) nothing
  // that can be used. Throws kInvalidArgument if a file was given that does not exist.
  std::optional<LoadedTuning> try_load(const DeviceInfo& device) const;
};

}  // namespace spillway
