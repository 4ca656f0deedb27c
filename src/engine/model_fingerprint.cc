// SPDX-License-Identifier: Apache-2.0
#include "engine/model_fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "base/digest.h"
#include "engine/loaded_model.h"
#include "storage/file.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

constexpr uint64_t kHeadBytes = uint64_t{1} << 20;
constexpr uint64_t kSampleBytes = uint64_t{1} << 14;
constexpr uint64_t kSamples = 64;

void add_range(Digest& digest, const File& file, uint64_t offset, uint64_t bytes) {
  std::string text(std::min(bytes, file.size() - std::min(offset, file.size())), '\0');
  file.read_exact(offset, std::as_writable_bytes(std::span(text)));
  digest.add(text);
}

void add_file(Digest& digest, const std::filesystem::path& path) {
  const File file(path);
  digest.add(fmt::format("{} {}\n", path.filename().native(), file.size()));
  add_range(digest, file, 0, kHeadBytes);
  if (file.size() <= kHeadBytes) return;
  for (uint64_t i = 0; i < kSamples; ++i)
    add_range(digest, file, file.size() / kSamples * i, kSampleBytes);
  add_range(digest, file, file.size() - kSampleBytes, kSampleBytes);
}

}  // namespace

std::string model_fingerprint(const std::string& reference) {
  if (try_dummy_name(reference)) return reference;
  std::vector<std::filesystem::path> paths = open_model(reference).paths;
  // A folder's tokenizer and configuration lie beside its weights.
  if (std::filesystem::is_directory(reference)) {
    for (const auto& entry : std::filesystem::directory_iterator(reference)) {
      const auto extension = entry.path().extension();
      const bool text = extension == ".json" || extension == ".txt" || extension == ".jinja";
      if (text && entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  Digest digest;
  for (const auto& path : paths) add_file(digest, path);
  return fmt::format("{} {}", std::filesystem::path(reference).filename().native(),
                     digest.digits());
}

}  // namespace spillway
