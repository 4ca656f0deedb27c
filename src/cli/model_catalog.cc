// SPDX-License-Identifier: Apache-2.0
#include "cli/model_catalog.h"

#include <filesystem>

#include "base/error.h"
#include "cli/cache_folder.h"
#include "engine/loaded_model.h"

namespace spillway {
namespace {

// The same table as in scripts/fetch_model.sh, which fills the cache.
struct CatalogEntry {
  const char* name;
  const char* file;
};
constexpr CatalogEntry kCatalog[] = {{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"}};

std::filesystem::path models_folder() {
  const auto cache = try_cache_folder();
  SPW_CHECK(cache.has_value(), kInvalidArgument,
            "neither XDG_CACHE_HOME nor HOME is set, so there is no cache of models; give a path");
  return *cache / "models";
}

}  // namespace

std::string resolve_model(const std::string& reference) {
  if (try_dummy_name(reference)) return reference;
  std::error_code error;
  const bool exists = std::filesystem::exists(reference, error);
  SPW_CHECK(!error, kInvalidArgument, "cannot look at {}: {}", reference, error.message());
  if (exists) return reference;
  for (const CatalogEntry& entry : kCatalog) {
    if (reference != entry.name) continue;
    const auto path = models_folder() / entry.file;
    SPW_CHECK(std::filesystem::exists(path, error), kInvalidArgument,
              "the model '{}' is not in {} yet; run scripts/fetch_model.sh {}, or give a path",
              entry.name, models_folder().string(), entry.name);
    return path.string();
  }
  fail(ErrorCode::kInvalidArgument,
       "no file, folder or known model '{}'; give a GGUF file, a Hugging Face folder, smollm2, or "
       "dummy:NAME",
       reference);
}

}  // namespace spillway
