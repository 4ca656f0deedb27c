// SPDX-License-Identifier: Apache-2.0
#include "cli/model_fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "engine/loaded_model.h"
#include "serve/checksum.h"
#include "storage/file.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

constexpr uint64_t kHeadBytes = uint64_t{1} << 20;
constexpr uint64_t kSampleBytes = uint64_t{1} << 14;
constexpr uint64_t kSamples = 64;

void add_range(Checksum& checksum, const File& file, uint64_t offset, uint64_t bytes) {
  std::string text(std::min(bytes, file.size() - std::min(offset, file.size())), '\0');
  file.read_exact(offset, std::as_writable_bytes(std::span(text)));
  checksum.add(text);
}

void add_file(Checksum& checksum, const std::filesystem::path& path) {
  const File file(path);
  checksum.add(fmt::format("{} {}\n", path.filename().native(), file.size()));
  add_range(checksum, file, 0, kHeadBytes);
  if (file.size() <= kHeadBytes) return;
  for (uint64_t i = 0; i < kSamples; ++i)
    add_range(checksum, file, file.size() / kSamples * i, kSampleBytes);
  add_range(checksum, file, file.size() - kSampleBytes, kSampleBytes);
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
  Checksum checksum;
  for (const auto& path : paths) add_file(checksum, path);
  return fmt::format("{} {}", std::filesystem::path(reference).filename().native(),
                     checksum.digits());
}

}  // namespace spillway
