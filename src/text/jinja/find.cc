// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/find.h"

#include <string.h>

#include <string>

namespace spillway::jinja {

std::optional<size_t> find_bytes(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return std::nullopt;
  if (what.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  if (found == nullptr) return std::nullopt;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::optional<size_t> find_last_bytes(std::string_view text, std::string_view what) {
  if (what.empty()) return text.size();
  if (what.size() > text.size()) return std::nullopt;
  // The last occurrence is the first one in the reversed text.
  const std::string backwards(text.rbegin(), text.rend());
  const auto found = find_bytes(backwards, std::string(what.rbegin(), what.rend()));
  if (!found) return std::nullopt;
  return text.size() - *found - what.size();
}

}  // namespace spillway::jinja
