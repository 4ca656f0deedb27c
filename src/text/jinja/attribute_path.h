// SPDX-License-Identifier: Apache-2.0
// What filters look at in each element: 'user.name', 'scores.0', or the element itself.
#pragma once

#include <optional>
#include <vector>

#include "text/jinja/heap.h"

namespace spillway::jinja {

class AttributePath {
 public:
  // Of none: the element itself.
  AttributePath(Heap& heap, const Value& attribute);

  Value of(const Value& item) const;
  // With `otherwise` for what is missing on the way.
  Value of(const Value& item, const std::optional<Value>& otherwise) const;

 private:
  Heap* heap_;
  std::vector<Value> parts_;
};

// One path for each of the attributes that are separated by commas.
std::vector<AttributePath> attribute_paths(Heap& heap, const Value& attributes);

// A string in lower case, everything else as it is: what sorting goes by.
Value ignoring_case(Heap& heap, const Value& value);

}  // namespace spillway::jinja
