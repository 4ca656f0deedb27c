// SPDX-License-Identifier: Apache-2.0
#include "engine/tuning_options.h"

#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/cache_folder.h"
#include "measure/tuning_file.h"

namespace spillway {

std::optional<std::filesystem::path> try_default_tuning_path() {
  const auto folder = try_cache_folder();
  if (!folder) return std::nullopt;
  return *folder / "tuning.json";
}

std::optional<LoadedTuning> TuningOptions::try_load(const DeviceInfo& device) const {
  if (off) return std::nullopt;
  const auto path = file.empty() ? try_default_tuning_path() : std::filesystem::path(file);
  if (!path) return std::nullopt;
  std::error_code error;
  SPW_CHECK(file.empty() || std::filesystem::exists(*path, error), kInvalidArgument,
            "no tuning file {}; spillway profile MODEL -o FILE makes one", printable_path(*path));
  auto table = try_read_tuning(*path, tuned_machine(device));
  if (!table) return std::nullopt;
  log_info("tuning: {} shapes from {}", table->measured().size(), printable_path(*path));
  return LoadedTuning{*path, std::move(*table)};
}

}  // namespace spillway
