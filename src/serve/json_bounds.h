// SPDX-License-Identifier: Apache-2.0
// Limits on JSON from clients, checked before a tree is built.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace spillway {

struct JsonLimits {
  int depth = 64;
  int members = 1024;  // of an object, since looking one up takes longer with each
  // Array elements, object members, and the value itself count as values.
  uint64_t values = std::numeric_limits<uint64_t>::max();
  // Bytes of a single string, where an escape counts as one byte.
  uint64_t string_bytes = std::numeric_limits<uint64_t>::max();
  int64_t context_tokens = 0;  // for the error message of a too long string
};

struct JsonSize {
  uint64_t values = 0;
  uint64_t text_bytes = 0;
  // Returns a rough upper bound of the memory for the tree and for what is made of it until it is
  // tokenized.
  uint64_t tree_bytes() const { return 96 * values + 4 * text_bytes; }
};

// Reads the text once, in constant memory. Throws ApiError(400) or (413) at the first limit that is
// exceeded. Text that is not JSON may pass: the parser stops before the miscounted part.
JsonSize check_json_bounds(std::string_view text, const JsonLimits& limits);

}  // namespace spillway
