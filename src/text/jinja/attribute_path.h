// SPDX-License-Identifier: Apache-2.0
// Resolves the part of each element that a filter looks at: 'user.name', 'scores.0', or the element
// itself.
#pragma once

#include <optional>
#include <vector>

#include "text/jinja/heap.h"

namespace spillway::jinja {

class AttributePath {
 public:
  // If `attribute` is none, the path is the element itself.
  AttributePath(Heap& heap, const Value& attribute);

  Value of(const Value& item) const;
  // Uses `otherwise` wherever a value on the path is undefined.
  Value of(const Value& item, const std::optional<Value>& otherwise) const;

 private:
  Heap* heap_;
  std::vector<Value> parts_;
};

// Returns one path for each of the attributes that are separated by commas.
std::vector<AttributePath> attribute_paths(Heap& heap, const Value& attributes);

// Returns a string in lower case and any other value unchanged; this is the key for sorting.
Value ignoring_case(Heap& heap, const Value& value);

}  // namespace spillway::jinja
