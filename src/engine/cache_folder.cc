// SPDX-License-Identifier: Apache-2.0
#include "engine/cache_folder.h"

#include <cstdlib>

namespace spillway {

std::optional<std::filesystem::path> try_cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "spillway";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return std::nullopt;
  return std::filesystem::path(home) / ".cache" / "spillway";
}

}  // namespace spillway
