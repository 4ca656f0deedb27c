// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

// Returns the arguments after the first `count` positional ones.
Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

std::string_view name_of(const Value& value, std::string_view what) {
  SPW_CHECK(value.is_string(), kInvalidArgument, "the name of a {} must be a string", what);
  return value.bytes();
}

Value map_attribute(Heap& heap, const Value& input, const Arguments& arguments) {
  Value attribute;
  std::optional<Value> otherwise;
  for (const auto& [name, value] : arguments.named) {
    SPW_CHECK(name == "attribute" || name == "default", kInvalidArgument,
              "map takes no argument '{}'", printable(name));
    if (name == "attribute")
      attribute = value;
    else if (!value.is_none())
      otherwise = value;
  }
  const AttributePath path(heap, attribute);
  std::vector<Value> mapped;
  for (const Value& item : items_of(heap, input)) mapped.push_back(path.of(item, otherwise));
  return heap.iterator(std::move(mapped));
}

Value map(Heap& heap, const Value& input, const Arguments& arguments) {
  if (!is_true(input)) return heap.iterator({});
  const bool by_attribute =
      arguments.positional.empty() && !arguments.named.empty() &&
      std::any_of(arguments.named.begin(), arguments.named.end(),
                  [](const auto& argument) { return argument.first == "attribute"; });
  if (by_attribute) return map_attribute(heap, input, arguments);
  SPW_CHECK(!arguments.positional.empty(), kInvalidArgument, "map wants the name of a filter");
  const std::string_view name = name_of(arguments.positional[0], "filter");
  const Arguments rest = without_first(arguments, 1);
  std::vector<Value> mapped;
  for (const Value& item : items_of(heap, input))
    mapped.push_back(apply_filter(heap, name, item, rest));
  return heap.iterator(std::move(mapped));
}

template <bool kKeep, bool kByAttribute>
Value select(Heap& heap, const Value& input, const Arguments& arguments) {
  if (!is_true(input)) return heap.iterator({});
  const size_t name_at = kByAttribute ? 1 : 0;
  SPW_CHECK(arguments.positional.size() >= name_at, kInvalidArgument,
            "this filter wants the name of an attribute");
  const AttributePath path(heap, kByAttribute ? arguments.positional[0] : Value());
  const bool has_test = arguments.positional.size() > name_at;
  const Arguments rest = has_test ? without_first(arguments, name_at + 1) : Arguments();
  std::vector<Value> kept;
  for (const Value& item : items_of(heap, input)) {
    const Value value = path.of(item);
    const bool passes =
        has_test ? apply_test(heap, name_of(arguments.positional[name_at], "test"), value, rest)
                 : is_true(value);
    if (passes == kKeep) kept.push_back(item);
  }
  return heap.iterator(std::move(kept));
}

}  // namespace

const FilterTable& selecting_filters() {
  static const FilterTable kTable{
      {"map", map},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
  };
  return kTable;
}

}  // namespace spillway::jinja
