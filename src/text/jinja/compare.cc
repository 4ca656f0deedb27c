// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/compare.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja/find.h"
#include "text/jinja/number_order.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

class Comparison {
 public:
  explicit Comparison(Heap& heap) : heap_(heap) {}

  bool equal(const Value& a, const Value& b, uint32_t depth) {
    heap_.charge_steps(1);
    if (a.is_number() && b.is_number()) return !has_nan(a, b) && compare_numbers(a, b) == 0;
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
      case Kind::kString:
        if (a.bytes().size() != b.bytes().size()) return false;
        heap_.charge_scan(a.bytes().size());
        return a.bytes() == b.bytes();
      case Kind::kList:
        return a.same_as(b) || equal_lists(a.list(), b.list(), depth);
      case Kind::kDict:
        return a.same_as(b) || equal_dicts(a.dict(), b.dict(), depth);
      case Kind::kUndefined:
      case Kind::kNone:
        return true;
      default:
        return a.same_as(b);
    }
  }

  bool is_less(const Value& a, const Value& b, uint32_t depth) {
    heap_.charge_steps(1);
    if (a.is_undefined()) fail_undefined(a);
    if (b.is_undefined()) fail_undefined(b);
    if (a.is_number() && b.is_number()) return !has_nan(a, b) && compare_numbers(a, b) < 0;
    if (a.is_string() && b.is_string()) {
      heap_.charge_scan(std::min(a.bytes().size(), b.bytes().size()));
      return a.bytes() < b.bytes();
    }
    const bool lists =
        a.is(Kind::kList) && b.is(Kind::kList) && a.list().sequence == b.list().sequence &&
        (a.list().sequence == Sequence::kList || a.list().sequence == Sequence::kTuple);
    SPW_CHECK(lists, kInvalidArgument, "'{}' and '{}' have no order", type_name(a), type_name(b));
    check_depth(depth);
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i], depth + 1)) return is_less(x[i], y[i], depth + 1);
    return x.size() < y.size();
  }

 private:
  void check_depth(uint32_t depth) const {
    SPW_CHECK(depth < heap_.limits().value_depth, kInvalidArgument,
              "the chat template compares values nested more than {} deep",
              heap_.limits().value_depth);
  }

  bool equal_lists(const List& a, const List& b, uint32_t depth) {
    if (a.sequence != b.sequence || a.items.size() != b.items.size()) return false;
    check_depth(depth);
    for (size_t i = 0; i < a.items.size(); ++i)
      if (!equal(a.items[i], b.items[i], depth + 1)) return false;
    return true;
  }

  bool equal_dicts(const Dict& a, const Dict& b, uint32_t depth) {
    if (a.size() != b.size()) return false;
    check_depth(depth);
    for (const auto& [key, value] : a.items()) {
      const auto other = b.try_find(key);
      if (!other || !equal(value, *other, depth + 1)) return false;
    }
    return true;
  }

  Heap& heap_;
};

}  // namespace

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
      return !value.list().items.empty();
    case Kind::kDict:
      return value.dict().size() != 0;
    default:
      return true;
  }
}

bool equals(Heap& heap, const Value& a, const Value& b) { return Comparison(heap).equal(a, b, 0); }

bool less(Heap& heap, const Value& a, const Value& b) { return Comparison(heap).is_less(a, b, 0); }

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) fail_undefined(item);
    SPW_CHECK(item.is_string(), kInvalidArgument, "'in <string>' wants a string, not '{}'",
              type_name(item));
    heap.charge_scan(container.bytes().size());
    return find_bytes(container.bytes(), item.bytes()).has_value();
  }
  if (container.is(Kind::kDict)) return container.dict().try_find(item).has_value();
  for (const Value& each : items_of(heap, container))
    if (each.same_as(item) || equals(heap, each, item)) return true;
  return false;
}

}  // namespace spillway::jinja
