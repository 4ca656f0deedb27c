// SPDX-License-Identifier: Apache-2.0
// Which tuning file a session uses: this machine's own, another, or none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "device/device.h"
#include "device/tuning.h"

namespace spillway {

// $XDG_CACHE_HOME/spillway/tuning.json, or nullopt where there is no cache.
[[nodiscard]] std::optional<std::filesystem::path> try_default_tuning_path();

struct LoadedTuning {
  std::filesystem::path path;
  TuningTable table;
};

struct TuningOptions {
  std::string file;  // empty: the default one, where it exists
  bool off = false;
  bool measure = false;  // what is not known yet, first

  // What was measured on `device`; nullopt where there is nothing, or (with a warning) nothing that
  // can be used. Throws kInvalidArgument for a file that was asked for and does not exist.
  std::optional<LoadedTuning> try_load(const DeviceInfo& device) const;
};

}  // namespace spillway
