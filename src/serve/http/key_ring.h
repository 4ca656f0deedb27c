// SPDX-License-Identifier: Apache-2.0
// The keys that callers of the API must show.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/http_request.h"

namespace spillway {

// Whether two texts are equal, in a time that depends only on the length of `shown`: how long a
// refusal takes says nothing about the secret, not even its length up to kMostKeyBytes.
bool equal_in_constant_time(std::string_view shown, std::string_view secret);

inline constexpr size_t kMostKeyBytes = 256;

// Never changes, so threads may share it. Keys are in no message and no log.
class KeyRing {
 public:
  // Throws kInvalidArgument for keys that no header could carry: 1 to 256 visible characters.
  explicit KeyRing(std::vector<std::string> keys);
  // One key a line; blank lines and those that begin with # are none. Warns when others than the
  // owner may read the file. Throws kInvalidArgument, also where there is no key at all.
  static KeyRing from_file(const std::filesystem::path& path);

  // Which of the keys "Bearer KEY", the value of an Authorization header, shows. Takes as long for
  // every key, right or wrong.
  [[nodiscard]] std::optional<size_t> try_find(std::string_view authorization) const;
  // Which of them a request shows: in its Authorization header, or where that has none of them, in
  // "x-api-key: KEY" or "api-key: KEY".
  [[nodiscard]] std::optional<size_t> try_find(const HttpRequest& request) const;
  // Whether a request tries to show a key.
  static bool has_key(const HttpRequest& request);
  size_t size() const { return keys_.size(); }
  // For people: the first 8 digits of XXH3-128 of a key, which tell keys apart and not what they
  // are.
  std::string label(size_t index) const;
  // For programs: what only this key has, in this process and the next, whatever keys are beside
  // it.
  std::string digest(size_t index) const;
  // For a client, which shows one; there must be any.
  const std::string& first() const { return keys_.front(); }

 private:
  std::optional<size_t> try_find_key(std::string_view shown) const;

  std::vector<std::string> keys_;
};

}  // namespace spillway
