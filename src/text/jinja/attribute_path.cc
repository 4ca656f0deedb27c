// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/attribute_path.h"

#include <algorithm>

#include "text/jinja/attribute.h"
#include "text/jinja/number_text.h"
#include "text/jinja/string_case.h"
#include "text/jinja/string_cut.h"

namespace spillway::jinja {

AttributePath::AttributePath(Heap& heap, const Value& attribute) : heap_(&heap) {
  if (attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  for (const Text& part : split_at(attribute.text(), ".", -1, false)) {
    const bool digits =
        !part.empty() && part.bytes().find_first_not_of("0123456789") == std::string_view::npos;
    const auto number = digits ? try_parse_int(part.bytes()) : std::nullopt;
    parts_.push_back(number ? Value(*number) : heap.text(part));
  }
}

Value AttributePath::of(const Value& item) const { return of(item, std::nullopt); }

Value AttributePath::of(const Value& item, const std::optional<Value>& otherwise) const {
  Value value = item;
  for (const Value& part : parts_) {
    heap_->charge_steps(1);
    value = get_item(*heap_, value, part);
    if (otherwise && value.is_undefined()) value = *otherwise;
  }
  return value;
}

std::vector<AttributePath> attribute_paths(Heap& heap, const Value& attributes) {
  std::vector<AttributePath> paths;
  if (!attributes.is_string()) {
    paths.emplace_back(heap, attributes);
    return paths;
  }
  for (const Text& part : split_at(attributes.text(), ",", -1, false))
    paths.emplace_back(heap, heap.text(part));
  return paths;
}

Value ignoring_case(Heap& heap, const Value& value) {
  return value.is_string() ? to_lower(heap, value.text()) : value;
}

}  // namespace spillway::jinja
