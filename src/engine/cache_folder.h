// SPDX-License-Identifier: Apache-2.0
// Finds the folder in which Spillway keeps what can be made again: fetched models and measurements.
#pragma once

#include <filesystem>
#include <optional>

namespace spillway {

// Returns $XDG_CACHE_HOME/spillway, or ~/.cache/spillway; nullopt if neither variable is set.
[[nodiscard]] std::optional<std::filesystem::path> try_cache_folder();

}  // namespace spillway
