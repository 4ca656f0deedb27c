// SPDX-License-Identifier: Apache-2.0
// Models known by a short name, kept in the user's cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace spillway {

// Resolves the name of a model: "smollm2", or the name of a file or folder in the cache (`.gguf`
// may be left out), becomes its path there; dummy:NAME and paths stay as they are. A path that
// exists wins over a name. Throws kInvalidArgument for a known model that was not fetched yet,
// saying how to, and for what is neither.
std::string resolve_model(const std::string& reference);

// Returns the name to show: "smollm2" stays; a path becomes the name of its file or folder without
// .gguf.
std::string shown_model_name(const std::string& reference);

// Returns the folder in which the cache keeps models. Throws kInvalidArgument if the environment
// has no place for it.
std::filesystem::path models_folder();

struct CachedModel {
  std::string name;  // what resolve_model() takes
  std::filesystem::path path;
  uint64_t bytes = 0;  // of all its files
  std::string origin;  // where it came from; empty if that was not recorded
};
// Returns the GGUF files (split ones once) and Hugging Face folders of the cache, sorted by name.
// Empty if there is no cache yet.
std::vector<CachedModel> cached_models();

}  // namespace spillway
