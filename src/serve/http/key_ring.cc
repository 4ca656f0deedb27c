// SPDX-License-Identifier: Apache-2.0
#include "serve/http/key_ring.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "serve/http/http_text.h"

namespace spillway {
namespace {

constexpr size_t kMostFileBytes = 1 << 20;
// Headers whose value is a key, which clients of other APIs send.
constexpr const char* kKeyHeaders[] = {"x-api-key", "api-key"};

using PaddedKey = std::array<unsigned char, kMostKeyBytes>;

PaddedKey padded(std::string_view key) {
  PaddedKey result{};
  std::copy_n(key.begin(), std::min(key.size(), result.size()), result.begin());
  return result;
}

bool is_key(std::string_view text) {
  return !text.empty() && text.size() <= kMostKeyBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

}  // namespace

bool equal_in_constant_time(std::string_view shown, std::string_view secret) {
  const PaddedKey a = padded(shown);
  const PaddedKey b = padded(secret);
  // Volatile, since the compiler may otherwise see that the rest of the loop cannot change the
  // result.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  const bool same_length = shown.size() == secret.size();
  const bool fits = shown.size() <= kMostKeyBytes;
  return (static_cast<unsigned>(difference == 0) & static_cast<unsigned>(same_length) &
          static_cast<unsigned>(fits)) != 0;
}

KeyRing::KeyRing(std::vector<std::string> keys) : keys_(std::move(keys)) {
  for (size_t i = 0; i < keys_.size(); ++i)
    SPW_CHECK(is_key(keys_[i]), kInvalidArgument,
              "API key {} is not 1 to {} visible ASCII characters", i + 1, kMostKeyBytes);
}

KeyRing KeyRing::from_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  SPW_CHECK(file.good(), kInvalidArgument, "cannot read the API keys in {}", printable_path(path));
  // Read with one call and a limit, so that no line of a wrong file fills the memory.
  std::string text(kMostFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  SPW_CHECK(text.size() <= kMostFileBytes, kInvalidArgument,
            "{} is too large for a file of API keys", printable_path(path));
  std::vector<std::string> keys;
  std::istringstream lines(text);
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    const std::string_view key = trim_blanks(line);
    if (key.empty() || key.starts_with('#')) continue;
    SPW_CHECK(is_key(key), kInvalidArgument,
              "line {} of {} is no API key: 1 to {} visible ASCII characters", number,
              printable_path(path), kMostKeyBytes);
    keys.emplace_back(key);
  }
  SPW_CHECK(!file.bad() && !keys.empty(), kInvalidArgument, "no API key in {}",
            printable_path(path));
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0)
    log_warning("others may read the API keys in {}; chmod 600 would keep them secret",
                printable_path(path));
  return KeyRing(std::move(keys));
}

std::string KeyRing::label(size_t index) const {
  constexpr size_t kDigits = 8;
  return digest128(keys_[index]).substr(0, kDigits);
}

std::string KeyRing::digest(size_t index) const { return digest128("key " + keys_[index]); }

std::optional<size_t> KeyRing::try_find_key(std::string_view shown) const {
  size_t found = keys_.size();
  for (size_t i = 0; i < keys_.size(); ++i) {
    const bool same = equal_in_constant_time(shown, keys_[i]);
    found = same ? i : found;
  }
  return found < keys_.size() ? std::optional(found) : std::nullopt;
}

std::optional<size_t> KeyRing::try_find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "Bearer ";
  if (!equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  return try_find_key(trim_blanks(authorization.substr(kScheme.size())));
}

std::optional<size_t> KeyRing::try_find(const HttpRequest& request) const {
  std::optional<size_t> found = try_find(request.header("authorization"));
  for (const char* const name : kKeyHeaders)
    if (!found) found = try_find_key(request.header(name));
  return found;
}

bool KeyRing::has_key(const HttpRequest& request) {
  return !request.header("authorization").empty() ||
         std::ranges::any_of(kKeyHeaders,
                             [&](const char* name) { return !request.header(name).empty(); });
}

}  // namespace spillway
