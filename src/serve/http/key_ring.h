// SPDX-License-Identifier: Apache-2.0
// The API keys that clients must show.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/http_request.h"

namespace spillway {

// Returns whether two texts are equal, in a time that depends only on the length of `shown`: the
// time of a refusal tells nothing about the secret, not even its length up to kMostKeyBytes.
bool equal_in_constant_time(std::string_view shown, std::string_view secret);

inline constexpr size_t kMostKeyBytes = 256;

// Immutable, so threads may share it. Keys never appear in messages and logs.
class KeyRing {
 public:
  // Throws kInvalidArgument for keys that a header could not carry: keys have 1 to 256 visible
  // characters.
  explicit KeyRing(std::vector<std::string> keys);
  // Reads one key per line; blank lines and lines that begin with # are skipped. Warns if other
  // users may read the file. Throws kInvalidArgument, also if there is no key at all.
  static KeyRing from_file(const std::filesystem::path& path);

  // Returns the index of the key in "Bearer KEY", the value of an Authorization header. Takes as
  // long for every key, right or wrong.
  [[nodiscard]] std::optional<size_t> try_find(std::string_view authorization) const;
  // Returns the index of the key that a request shows: in its Authorization header, or if that has
  // none of the keys, in "x-api-key: KEY" or "api-key: KEY".
  [[nodiscard]] std::optional<size_t> try_find(const HttpRequest& request) const;
  // Returns whether a request tries to show a key.
  static bool has_key(const HttpRequest& request);
  size_t size() const { return keys_.size(); }
  // Returns a name of the key for people: the first 8 digits of its XXH3-128, which tell keys apart
  // but do not reveal them.
  std::string label(size_t index) const;
  // Returns a digest for programs, which is unique to this key, in later processes too and whatever
  // other keys there are.
  std::string digest(size_t index) const;
  // Returns the first key, for a client to show; there must be one.
  const std::string& first() const { return keys_.front(); }

 private:
  std::optional<size_t> try_find_key(std::string_view shown) const;

  std::vector<std::string> keys_;
};

}  // namespace spillway
