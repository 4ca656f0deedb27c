// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

Value to_list(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("list", arguments, {});
  return heap.list(items_of(heap, input));
}

Value first(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("first", arguments, {});
  if (input.is(Kind::kIterator)) {
    Iterator& from = input.iterator();
    if (from.next < from.items.size()) return from.items[from.next++];
  } else {
    const std::vector<Value> items = items_of(heap, input);
    if (!items.empty()) return items.front();
  }
  return heap.undefined("there is no first item: the sequence is empty");
}

bool can_go_backwards(const Value& value) { return !value.is(Kind::kIterator); }

Value last(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("last", arguments, {});
  SPW_CHECK(can_go_backwards(input), kInvalidArgument, "last cannot be taken of a '{}'",
            type_name(input));
  const std::vector<Value> items = items_of(heap, input);
  if (!items.empty()) return items.back();
  return heap.undefined("there is no last item: the sequence is empty");
}

Value reverse(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("reverse", arguments, {});
  if (input.is_string()) return slice(heap, input, Value(), Value(), int64_t{-1});
  std::vector<Value> items = items_of(heap, input);
  std::reverse(items.begin(), items.end());
  return can_go_backwards(input) ? heap.iterator(std::move(items)) : heap.list(std::move(items));
}

Value items(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("items", arguments, {});
  std::vector<Value> pairs;
  if (!input.is_undefined()) {
    SPW_CHECK(input.is(Kind::kDict), kInvalidArgument, "items wants a mapping, not '{}'",
              type_name(input));
    heap.charge_steps(input.dict().size());
    for (const auto& [key, value] : input.dict().items()) pairs.push_back(heap.tuple({key, value}));
  }
  return heap.iterator(std::move(pairs));
}

// An element with the keys that it is sorted by.
struct Keyed {
  std::vector<Value> keys;
  Value value;
};

void sort_by_keys(Heap& heap, std::vector<Keyed>& items, bool reverse) {
  const auto before = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.keys.size(); ++i) {
      const Value& x = reverse ? b.keys[i] : a.keys[i];
      const Value& y = reverse ? a.keys[i] : b.keys[i];
      if (!equals(heap, x, y)) return less(heap, x, y);
    }
    return false;
  };
  std::stable_sort(items.begin(), items.end(), before);
}

std::vector<Value> values_of(const std::vector<Keyed>& items) {
  std::vector<Value> values;
  for (const Keyed& item : items) values.push_back(item.value);
  return values;
}

Value sort(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const auto paths = attribute_paths(heap, given.value_or(2, Value()));
  const bool by_case = given.flag_or(1, false);
  std::vector<Keyed> sorted;
  for (const Value& item : items_of(heap, input)) {
    Keyed& keyed = sorted.emplace_back(Keyed{.keys = {}, .value = item});
    for (const AttributePath& path : paths) {
      const Value key = path.of(item);
      keyed.keys.push_back(by_case ? key : ignoring_case(heap, key));
    }
  }
  sort_by_keys(heap, sorted, given.flag_or(0, false));
  return heap.list(values_of(sorted));
}

Value dictsort(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (input.is_undefined()) fail_undefined(input);
  SPW_CHECK(input.is(Kind::kDict), kInvalidArgument, "dictsort wants a mapping, not '{}'",
            type_name(input));
  const std::string_view by = given.has(1) ? given.text(1).bytes() : "key";
  SPW_CHECK(by == "key" || by == "value", kInvalidArgument, "dictsort sorts by key or by value");
  std::vector<Keyed> sorted;
  heap.charge_steps(input.dict().size());
  for (const auto& [key, value] : input.dict().items()) {
    const Value& chosen = by == "key" ? key : value;
    sorted.push_back({.keys = {given.flag_or(0, false) ? chosen : ignoring_case(heap, chosen)},
                      .value = heap.tuple({key, value})});
  }
  sort_by_keys(heap, sorted, given.flag_or(2, false));
  return heap.list(values_of(sorted));
}

Value unique(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(heap, given.value_or(1, Value()));
  Dict seen;
  std::vector<Value> kept;
  for (const Value& item : items_of(heap, input)) {
    Value key = path.of(item);
    if (!given.flag_or(0, false)) key = ignoring_case(heap, key);
    if (seen.try_find(key)) continue;
    heap.charge_bytes(4 * sizeof(Value));
    seen.set(key, true);
    kept.push_back(item);
  }
  return heap.iterator(std::move(kept));
}

template <bool kLargest>
Value extreme(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given(kLargest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(heap, given.value_or(1, Value()));
  std::optional<Value> best;
  Value best_key;
  for (const Value& item : items_of(heap, input)) {
    Value key = path.of(item);
    if (!given.flag_or(0, false)) key = ignoring_case(heap, key);
    if (best && !(kLargest ? less(heap, best_key, key) : less(heap, key, best_key))) continue;
    best = item;
    best_key = key;
  }
  if (best) return *best;
  return heap.undefined("there is no smallest or largest item: the sequence is empty");
}

Value sum(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("sum", arguments, {"attribute", "start"});
  const AttributePath path(heap, given.value_or(0, Value()));
  Value total = given.value_or(1, int64_t{0});
  SPW_CHECK(!total.is_string(), kInvalidArgument, "sum does not join strings; use join");
  for (const Value& item : items_of(heap, input)) total = add(heap, total, path.of(item));
  return total;
}

Value batch(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("batch", arguments, {"linecount", "fill_with"});
  const int64_t size = given.integer(0);
  std::vector<Value> batches;
  std::vector<Value> current;
  const auto close = [&] {
    batches.push_back(heap.list(std::move(current)));
    current.clear();
  };
  for (const Value& item : items_of(heap, input)) {
    if (static_cast<int64_t>(current.size()) == size) close();
    current.push_back(item);
  }
  if (!current.empty()) {
    const Value fill = given.value_or(1, Value());
    const int64_t missing = size - static_cast<int64_t>(current.size());
    if (!fill.is_none() && missing > 0) {
      heap.charge_steps(static_cast<uint64_t>(missing));
      current.insert(current.end(), static_cast<size_t>(missing), fill);
    }
    close();
  }
  return heap.iterator(std::move(batches));
}

Value slices(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("slice", arguments, {"slices", "fill_with"});
  const std::vector<Value> all = items_of(heap, input);
  const int64_t count = given.integer(0);
  SPW_CHECK(count != 0, kInvalidArgument, "the chat template divides by zero");
  std::vector<Value> parts;
  if (count > 0) {
    heap.charge_steps(static_cast<uint64_t>(count));
    const auto length = static_cast<int64_t>(all.size());
    const int64_t each = length / count;
    const int64_t larger = length % count;
    const Value fill = given.value_or(1, Value());
    auto at = all.begin();
    for (int64_t i = 0; i < count; ++i) {
      const auto end = at + each + (i < larger ? 1 : 0);
      std::vector<Value> part(at, end);
      if (!fill.is_none() && i >= larger) part.push_back(fill);
      parts.push_back(heap.list(std::move(part)));
      at = end;
    }
  }
  return heap.iterator(std::move(parts));
}

Value group_by(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const AttributePath path(heap, given.value(0));
  std::optional<Value> otherwise;
  if (given.has(1) && !given.value(1).is_none()) otherwise = given.value(1);
  const bool by_case = given.flag_or(2, false);
  std::vector<Keyed> sorted;
  for (const Value& item : items_of(heap, input)) {
    const Value key = path.of(item, otherwise);
    sorted.push_back({.keys = {by_case ? key : ignoring_case(heap, key)}, .value = item});
  }
  sort_by_keys(heap, sorted, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i;
    std::vector<Value> members;
    while (end < sorted.size() && equals(heap, sorted[end].keys[0], sorted[i].keys[0]))
      members.push_back(sorted[end++].value);
    const Value grouper = path.of(members.front(), otherwise);
    groups.push_back(heap.group(grouper, heap.list(std::move(members))));
    i = end;
  }
  return heap.list(std::move(groups));
}

}  // namespace

const FilterTable& list_filters() {
  static const FilterTable kTable{
      {"batch", batch},      {"dictsort", dictsort}, {"first", first},
      {"groupby", group_by}, {"items", items},       {"last", last},
      {"list", to_list},     {"max", extreme<true>}, {"min", extreme<false>},
      {"reverse", reverse},  {"slice", slices},      {"sort", sort},
      {"sum", sum},          {"unique", unique},
  };
  return kTable;
}

}  // namespace spillway::jinja
