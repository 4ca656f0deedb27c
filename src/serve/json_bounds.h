// SPDX-License-Identifier: Apache-2.0
// Limits on the JSON that strangers send, checked before any of it becomes a tree.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace spillway {

struct JsonLimits {
  int depth = 64;
  int members = 1024;  // of an object: looking one up takes longer with each
  // Array elements, object members and the value itself.
  uint64_t values = std::numeric_limits<uint64_t>::max();
  // Of a single string, escapes counting as one byte.
  uint64_t string_bytes = std::numeric_limits<uint64_t>::max();
  int64_t context_tokens = 0;  // for the error of a longer string: it has room for no more
};

struct JsonSize {
  uint64_t values = 0;
  uint64_t text_bytes = 0;
  // What the tree, and what is made of it until there are tokens, take at most, about.
  uint64_t tree_bytes() const { return 96 * values + 4 * text_bytes; }
};

// Reads the text once, in constant memory. Throws ApiError(400) or (413) at the first limit that it
// exceeds. Text that is not JSON may pass: a parser stops before this check would go wrong.
JsonSize check_json_bounds(std::string_view text, const JsonLimits& limits);

}  // namespace spillway
