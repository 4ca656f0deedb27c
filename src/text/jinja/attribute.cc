// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/attribute.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/arguments.h"
#include "text/jinja/compare.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

using DictMethod = Value (*)(Heap& heap, const Value& self, const Arguments& arguments);
using ListMethod = DictMethod;

Value dict_get(Heap&, const Value& self, const Arguments& arguments) {
  const Parameters given("get()", arguments, {"key", "default"});
  return self.dict().try_find(given.value(0)).value_or(given.value_or(1, Value()));
}

Value dict_keys(Heap& heap, const Value& self, const Arguments& arguments) {
  const Parameters given("keys()", arguments, {});
  return heap.list(items_of(heap, self), Sequence::kDictKeys);
}

Value dict_values(Heap& heap, const Value& self, const Arguments& arguments) {
  const Parameters given("values()", arguments, {});
  heap.charge_steps(self.dict().size());
  std::vector<Value> values;
  for (const auto& item : self.dict().items()) values.push_back(item.second);
  return heap.list(std::move(values), Sequence::kDictValues);
}

Value dict_items(Heap& heap, const Value& self, const Arguments& arguments) {
  const Parameters given("items()", arguments, {});
  heap.charge_steps(self.dict().size());
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().items()) items.push_back(heap.tuple({key, value}));
  return heap.list(std::move(items), Sequence::kDictItems);
}

Value copy(Heap&, const Value& self, const Arguments& arguments) {
  const Parameters given("copy()", arguments, {});
  return self;  // values are immutable, so no copy is needed
}

Value list_index(Heap& heap, const Value& self, const Arguments& arguments) {
  const Parameters given("index()", arguments, {"value", "start", "stop"});
  const auto& items = self.list().items;
  const auto size = static_cast<int64_t>(items.size());
  const auto placed = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? (at < -size ? 0 : at + size) : at, 0, size);
  };
  const int64_t stop = placed(given.integer_or(2, size));
  for (int64_t i = placed(given.integer_or(1, 0)); i < stop; ++i)
    if (equals(heap, items[static_cast<size_t>(i)], given.value(0))) return i;
  fail(ErrorCode::kInvalidArgument, "index() does not find the value");
}

Value list_count(Heap& heap, const Value& self, const Arguments& arguments) {
  const Parameters given("count()", arguments, {"value"});
  int64_t count = 0;
  for (const Value& item : self.list().items) count += equals(heap, item, given.value(0)) ? 1 : 0;
  return count;
}

template <class Method, size_t kCount>
Method find_in(const std::array<std::pair<std::string_view, Method>, kCount>& methods,
               std::string_view name) {
  for (const auto& [known, method] : methods)
    if (known == name) return method;
  return nullptr;
}

constexpr std::array<std::pair<std::string_view, DictMethod>, 5> kDictMethods{
    {{"get", dict_get},
     {"items", dict_items},
     {"keys", dict_keys},
     {"values", dict_values},
     {"copy", copy}}};
constexpr std::array<std::pair<std::string_view, ListMethod>, 2> kListMethods{
    {{"index", list_index}, {"count", list_count}}};

constexpr std::array<std::string_view, 6> kChangeDicts = {"clear",      "pop",    "popitem",
                                                          "setdefault", "update", "fromkeys"};
constexpr std::array<std::string_view, 8> kChangeLists = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};

bool changes_value(const Value& object, std::string_view name) {
  const auto in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (object.is(Kind::kDict)) return in(kChangeDicts);
  return object.is(Kind::kList) && object.list().sequence == Sequence::kList && in(kChangeLists);
}

// Returns nullptr if the object has no such method.
ListMethod find_method(const Value& object, std::string_view name) {
  if (object.is(Kind::kDict)) return find_in(kDictMethods, name);
  if (!object.is(Kind::kList) || object.list().is_view()) return nullptr;
  if (name == "copy" && object.list().sequence == Sequence::kList) return copy;
  return find_in(kListMethods, name);
}

std::optional<Value> try_own_attribute(Heap& heap, const Value& object, std::string_view name) {
  if (name.starts_with("_")) return std::nullopt;
  if (object.is(Kind::kNamespace)) return object.name_space().attributes.try_find(name);
  if (object.is(Kind::kObject)) return object.object().try_attribute(name);
  if (object.is(Kind::kFunction)) {
    const auto& attributes = object.function().attributes;
    const auto found = attributes.find(name);
    if (found == attributes.end()) return std::nullopt;
    return found->second;
  }
  if (object.is(Kind::kList) && object.list().is_group && (name == "grouper" || name == "list"))
    return object.list().items[name == "list" ? 1 : 0];
  const bool is_method = object.is_string() ? find_string_method(name) != nullptr
                                            : find_method(object, name) != nullptr;
  if (is_method) {
    return heap.function(
        {.name = std::string(name),
         .call =
             [&heap, object, name = std::string(name)](const Arguments& arguments) {
               return *try_call_method(heap, object, name, arguments);
             },
         .attributes = {}});
  }
  if (changes_value(object, name))
    return heap.undefined(fmt::format("'{}' of a {} is not available: values cannot be changed",
                                      name, type_name(object)));
  return std::nullopt;
}

std::optional<Value> try_element(Heap& heap, const Value& object, const Value& key) {
  if (object.is(Kind::kDict)) {
    if (key.is_string()) heap.charge_scan(key.bytes().size());
    if (key.is(Kind::kList) && key.list().sequence != Sequence::kTuple) return std::nullopt;
    if (key.is(Kind::kDict) || key.kind() >= Kind::kIterator) return std::nullopt;
    return object.dict().try_find(key);
  }
  if (key.is_integral()) return try_index(heap, object, key.integer());
  return std::nullopt;
}

Value missing(Heap& heap, const Value& object, std::string_view name) {
  if (name.starts_with("_") && !object.is(Kind::kDict))
    return heap.undefined(
        fmt::format("'{}' of a {} is not available", printable(name, 60), type_name(object)));
  return heap.undefined(
      fmt::format("a value of type '{}' has no '{}'", type_name(object), printable(name, 60)));
}

}  // namespace

Value get_attribute(Heap& heap, const Value& object, std::string_view name) {
  if (object.is_undefined()) fail_undefined(object);
  if (const auto own = try_own_attribute(heap, object, name)) return *own;
  if (object.is(Kind::kDict)) {
    if (const auto found = object.dict().try_find(name)) return *found;
  }
  return missing(heap, object, name);
}

Value get_item(Heap& heap, const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  if (const auto element = try_element(heap, object, key)) return *element;
  if (key.is_string()) {
    if (const auto own = try_own_attribute(heap, object, key.bytes())) return *own;
    return missing(heap, object, key.bytes());
  }
  return heap.undefined(fmt::format("a value of type '{}' has no such element", type_name(object)));
}

std::optional<Value> try_call_method(Heap& heap, const Value& object, std::string_view name,
                                     const Arguments& arguments) {
  if (object.is_string()) {
    const StringMethod method = find_string_method(name);
    if (method == nullptr) return std::nullopt;
    heap.charge_scan(object.bytes().size());
    return method(heap, object.text(), arguments);
  }
  const ListMethod method = find_method(object, name);
  if (method == nullptr) return std::nullopt;
  return method(heap, object, arguments);
}

Value call_value(Heap& heap, const Value& callee, const Arguments& arguments) {
  heap.charge_steps(1);
  if (callee.is_undefined()) fail_undefined(callee);
  if (callee.is(Kind::kObject)) return callee.object().call(arguments);
  SPW_CHECK(callee.is(Kind::kFunction), kInvalidArgument, "a value of type '{}' cannot be called",
            type_name(callee));
  return callee.function().call(arguments);
}

}  // namespace spillway::jinja
