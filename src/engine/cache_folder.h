// SPDX-License-Identifier: Apache-2.0
// Where Spillway keeps what can be made again: models it fetched, what it measured.
#pragma once

#include <filesystem>
#include <optional>

namespace spillway {

// $XDG_CACHE_HOME/spillway, or ~/.cache/spillway; nullopt where neither variable is set.
[[nodiscard]] std::optional<std::filesystem::path> try_cache_folder();

}  // namespace spillway
