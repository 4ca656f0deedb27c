// SPDX-License-Identifier: Apache-2.0
#include "engine/model_catalog.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/nearest_name.h"
#include "base/printable.h"
#include "engine/cache_folder.h"
#include "engine/loaded_model.h"

namespace spillway {
namespace {

// The same table as in scripts/fetch_model.sh, which fills the cache.
struct CatalogEntry {
  const char* name;
  const char* file;
};
constexpr CatalogEntry kCatalog[] = {{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"}};

namespace fs = std::filesystem;

constexpr size_t kMaxNeighbours = 10'000;  // files that are looked at for a misspelled name

// Returns whether the file is a part of a split model after the first, which stands for all.
bool is_later_part(const std::string& name) {
  constexpr std::string_view kShape = "-00000-of-00000.gguf";  // where a 0 stands for any digit
  if (name.size() < kShape.size()) return false;
  const std::string_view end = std::string_view(name).substr(name.size() - kShape.size());
  const bool is_part = std::equal(end.begin(), end.end(), kShape.begin(), [](char c, char shape) {
    return shape == '0' ? c >= '0' && c <= '9' : c == shape;
  });
  return is_part && end.substr(1, 5) != "00001";
}

// Returns the line that scripts/fetch_model.sh writes beside each model.
std::string origin_of(const fs::path& path) {
  std::ifstream file(path.string() + ".origin");
  std::string line;
  std::getline(file, line);
  return printable(line.substr(0, 200));
}

uint64_t folder_bytes(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code unknown;
    const auto size = entry.is_regular_file(unknown) ? entry.file_size(unknown) : 0;
    if (!unknown) bytes += size;
  }
  return bytes;
}

// Returns the bytes of a file, or of all parts of a split model.
uint64_t file_bytes(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t part = name.find("-00001-of-");
  std::error_code error;
  if (part == std::string::npos) return fs::file_size(path, error);
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), error)) {
    const std::string other = entry.path().filename().string();
    const bool belongs = other.size() == name.size() &&
                         other.starts_with(name.substr(0, part + 1)) &&
                         other.ends_with(name.substr(part + 6));
    std::error_code unknown;
    const auto size = belongs ? entry.file_size(unknown) : 0;
    if (!unknown) bytes += size;
  }
  return bytes;
}

// Returns the names that a wrong reference may have meant: those of the catalog, of the cache, and
// of models beside the path.
std::vector<std::string> possible_models(const std::string& reference) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : kCatalog) names.emplace_back(entry.name);
  if (try_cache_folder())
    for (const CachedModel& model : cached_models()) names.push_back(model.name);
  const fs::path folder = fs::path(reference).parent_path();
  std::error_code error;
  size_t looked_at = 0;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
    if (++looked_at > kMaxNeighbours) break;
    std::error_code unknown;
    if (entry.path().extension() == ".gguf" || fs::exists(entry.path() / "config.json", unknown))
      names.push_back((folder / entry.path().filename()).string());
  }
  return names;
}

}  // namespace

std::filesystem::path models_folder() {
  const auto cache = try_cache_folder();
  SPW_CHECK(cache.has_value(), kInvalidArgument,
            "neither XDG_CACHE_HOME nor HOME is set, so there is no cache of models; give a path");
  return *cache / "models";
}

std::vector<CachedModel> cached_models() {
  std::vector<CachedModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(models_folder(), error)) {
    const fs::path& path = entry.path();
    const std::string file = path.filename().string();
    std::error_code unknown;
    const bool folder = entry.is_directory(unknown) && fs::exists(path / "config.json", unknown);
    const bool gguf = entry.is_regular_file(unknown) && path.extension() == ".gguf";
    if (file.starts_with('.') || !(folder || gguf) || is_later_part(file)) continue;
    CachedModel model{file, path, folder ? folder_bytes(path) : file_bytes(path), origin_of(path)};
    for (const CatalogEntry& known : kCatalog) {
      if (file == known.file) model.name = known.name;
    }
    models.push_back(std::move(model));
  }
  std::ranges::sort(models, {}, &CachedModel::name);
  return models;
}

std::string shown_model_name(const std::string& reference) {
  const fs::path path(reference);
  std::string name =
      path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name.empty() ? "model" : printable(name, 200);
}

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
  const bool bare = !reference.empty() && reference.find('/') == std::string::npos;
  if (bare && try_cache_folder()) {
    for (const CachedModel& model : cached_models()) {
      if (model.name == reference || model.name == reference + ".gguf") return model.path.string();
    }
  }
  const std::string meant = did_you_mean(reference, possible_models(reference));
  fail(ErrorCode::kInvalidArgument,
       "no file, folder or known model '{}'{} give a GGUF file, a Hugging Face folder, smollm2, or "
       "dummy:NAME (spillway list shows what the cache has)",
       reference, meant.empty() ? ";" : printable(meant));
}

}  // namespace spillway
