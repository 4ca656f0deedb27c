// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

bool can_be_indexed(const List& list) { return !list.is_view(); }

std::vector<Value> characters_of(Heap& heap, const Text& whole) {
  const Text text = whole.with_markup(false);  // iterating over Python's Markup gives plain strings
  heap.charge_steps(text.size());
  std::vector<Value> items;
  const std::string_view bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = decode_utf8(bytes, at).bytes;
    items.push_back(heap.text(text.part(at, size)));
    at += size;
  }
  return items;
}

// The first and the end index of a slice, by Python's rules.
struct SliceBounds {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

int64_t slice_number(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  SPW_CHECK(value.is_integral(), kInvalidArgument, "a slice wants whole numbers, not '{}'",
            type_name(value));
  return value.integer();
}

SliceBounds slice_bounds(int64_t length, const Value& start, const Value& stop, const Value& step) {
  SliceBounds bounds;
  if (!step.is_none()) bounds.step = slice_number(step);
  SPW_CHECK(bounds.step != 0, kInvalidArgument, "the step of a slice cannot be zero");
  const bool backwards = bounds.step < 0;
  const int64_t lowest = backwards ? -1 : 0;
  const int64_t highest = backwards ? length - 1 : length;
  const auto placed = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t at = slice_number(value);
    if (at < 0) at = at < -length ? lowest : at + length;
    return std::clamp(at, lowest, std::max(lowest, highest));
  };
  bounds.start = placed(start, backwards ? highest : lowest);
  bounds.stop = placed(stop, backwards ? lowest : highest);
  return bounds;
}

// Calls fn(index) for each element of the slice.
template <class Fn>
void for_each_in(const SliceBounds& bounds, Fn&& fn) {
  int64_t at = bounds.start;
  while (bounds.step > 0 ? at < bounds.stop : at > bounds.stop) {
    fn(static_cast<size_t>(at));
    if (__builtin_add_overflow(at, bounds.step, &at)) return;
  }
}

Value slice_text(Heap& heap, const Text& text, const SliceBounds& bounds) {
  const std::string_view bytes = text.bytes();
  heap.charge_scan(bytes.size());
  if (bounds.step == 1) {
    if (bounds.start >= bounds.stop) return heap.text(text.part(0, 0));
    const size_t begin = character_offset(bytes, static_cast<size_t>(bounds.start));
    const size_t size =
        character_offset(bytes.substr(begin), static_cast<size_t>(bounds.stop - bounds.start));
    return heap.text(text.part(begin, size));
  }
  std::vector<std::pair<size_t, size_t>> places;  // offset and size in bytes of each character
  heap.charge_bytes(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = decode_utf8(bytes, at).bytes;
    places.emplace_back(at, size);
    at += size;
  }
  TextBuilder out(heap);
  for_each_in(bounds, [&](size_t i) { out.append(text.part(places[i].first, places[i].second)); });
  return out.take(text.is_markup());
}

Value slice_range(Heap& heap, const List& range, const SliceBounds& bounds) {
  const auto place = [&](int64_t index) {
    int64_t at = 0;
    SPW_CHECK(!__builtin_mul_overflow(index, range.range_step, &at) &&
                  !__builtin_add_overflow(at, range.range_start, &at),
              kInvalidArgument, "a slice of a range has numbers of more than 64 bits");
    return at;
  };
  int64_t step = 0;
  SPW_CHECK(!__builtin_mul_overflow(bounds.step, range.range_step, &step), kInvalidArgument,
            "a slice of a range has numbers of more than 64 bits");
  return heap.range(place(bounds.start), place(bounds.stop), step);
}

}  // namespace

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kDict:
    case Kind::kIterator:
      return true;
    case Kind::kObject:
      return value.object().type_name() == "LoopContext";
    default:
      return false;
  }
}

std::vector<Value> items_of(Heap& heap, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kString:
      items = characters_of(heap, value.text());
      break;
    case Kind::kList:
      items = value.list().items;
      break;
    case Kind::kDict:
      items.reserve(value.dict().size());
      for (const auto& item : value.dict().items()) items.push_back(item.first);
      break;
    case Kind::kIterator: {
      Iterator& from = value.iterator();
      items.assign(from.items.begin() + static_cast<std::ptrdiff_t>(from.next), from.items.end());
      from.next = from.items.size();
      break;
    }
    default:
      fail(ErrorCode::kInvalidArgument, "a value of type '{}' cannot be gone through",
           type_name(value));
  }
  heap.charge_steps(items.size());
  return items;
}

int64_t length_of(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      heap.charge_scan(value.bytes().size());
      return static_cast<int64_t>(count_characters(value.bytes()));
    case Kind::kList:
      return static_cast<int64_t>(value.list().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().size());
    default:
      break;
  }
  if (value.is(Kind::kObject)) {
    const auto length = value.object().try_attribute("length");
    if (length && length->is_integral()) return length->integer();
  }
  fail(ErrorCode::kInvalidArgument, "a value of type '{}' has no length", type_name(value));
}

std::optional<Value> try_index(Heap& heap, const Value& value, int64_t index) {
  if (value.is_string()) {
    const std::string_view bytes = value.bytes();
    heap.charge_scan(bytes.size());
    if (index < 0) index += static_cast<int64_t>(count_characters(bytes));
    if (index < 0) return std::nullopt;
    const size_t at = character_offset(bytes, static_cast<size_t>(index));
    if (at >= bytes.size()) return std::nullopt;
    return heap.text(value.text().part(at, decode_utf8(bytes, at).bytes));
  }
  if (!value.is(Kind::kList) || !can_be_indexed(value.list())) return std::nullopt;
  const auto& items = value.list().items;
  if (index < 0) index += static_cast<int64_t>(items.size());
  if (index < 0 || index >= static_cast<int64_t>(items.size())) return std::nullopt;
  return items[static_cast<size_t>(index)];
}

Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
            const Value& step) {
  if (value.is_undefined()) fail_undefined(value);
  const bool list = value.is(Kind::kList) && can_be_indexed(value.list());
  SPW_CHECK(list || value.is_string(), kInvalidArgument, "a value of type '{}' cannot be sliced",
            type_name(value));
  const SliceBounds bounds = slice_bounds(length_of(heap, value), start, stop, step);
  if (value.is_string()) return slice_text(heap, value.text(), bounds);
  const List& from = value.list();
  if (from.sequence == Sequence::kRange) return slice_range(heap, from, bounds);
  std::vector<Value> items;
  for_each_in(bounds, [&](size_t i) { items.push_back(from.items[i]); });
  heap.charge_steps(items.size());
  return heap.list(std::move(items), from.sequence);
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += decode_utf8(text, at).bytes) ++count;
  return count;
}

size_t character_offset(std::string_view text, size_t characters) {
  size_t at = 0;
  for (; characters > 0 && at < text.size(); --characters) at += decode_utf8(text, at).bytes;
  return at;
}

}  // namespace spillway::jinja
