// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/heap.h"

#include <utility>

#include "base/error.h"

namespace spillway::jinja {

void Heap::charge_steps(uint64_t steps) {
  steps_ += steps;
  SPW_CHECK(steps_ <= limits_.steps, kInvalidArgument,
            "the chat template needs more than {} steps; it may never end", limits_.steps);
}

void Heap::charge_bytes(uint64_t bytes) {
  bytes_ += bytes;
  SPW_CHECK(bytes_ <= limits_.value_bytes && bytes <= limits_.value_bytes, kInvalidArgument,
            "the chat template makes values of more than {} bytes", limits_.value_bytes);
}

Value Heap::text(const Text& text) {
  charge_bytes(sizeof(Text));
  return Value(&texts_.emplace_back(text));
}

Value Heap::text(std::string bytes, Origin origin) {
  charge_bytes(bytes.size() + sizeof(OriginBytes));
  OriginBytes& stored = bytes_of_texts_.emplace_back();
  stored.bytes = std::move(bytes);
  return text(Text(stored.bytes, origin));
}

Value Heap::list(std::vector<Value> items, Sequence sequence) {
  charge_bytes(sizeof(List) + items.size() * sizeof(Value));
  List& stored = lists_.emplace_back();
  stored.items = std::move(items);
  stored.sequence = sequence;
  return Value(&stored);
}

Value Heap::group(const Value& grouper, const Value& members) {
  const Value value = tuple({grouper, members});
  lists_.back().is_group = true;
  return value;
}

Value Heap::range(int64_t start, int64_t stop, int64_t step) {
  SPW_CHECK(step != 0, kInvalidArgument, "range() wants a step that is not zero");
  // The distance of two 64-bit numbers may not fit a signed number, so it is unsigned.
  uint64_t count = 0;
  const auto distance = [](int64_t from, int64_t to) {
    return static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  };
  if (step > 0 && start < stop)
    count = (distance(start, stop) - 1) / static_cast<uint64_t>(step) + 1;
  if (step < 0 && start > stop)
    count = (distance(stop, start) - 1) / (uint64_t{0} - static_cast<uint64_t>(step)) + 1;
  SPW_CHECK(count <= static_cast<uint64_t>(limits_.range_items), kInvalidArgument,
            "the chat template wants a range of {} items; at most {}", count, limits_.range_items);
  charge_steps(count);
  std::vector<Value> items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i)
    items.emplace_back(
        static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step)));
  const Value value = list(std::move(items), Sequence::kRange);
  lists_.back().range_start = start;
  lists_.back().range_stop = stop;
  lists_.back().range_step = step;
  return value;
}

Value Heap::dict(Dict dict) {
  charge_bytes(sizeof(Dict) + dict.size() * 4 * sizeof(Value));
  return Value(&dicts_.emplace_back(std::move(dict)));
}

Value Heap::iterator(std::vector<Value> items) {
  charge_bytes(sizeof(Iterator) + items.size() * sizeof(Value));
  return Value(&iterators_.emplace_back(Iterator{.items = std::move(items), .next = 0}));
}

Value Heap::name_space(Dict attributes) {
  charge_bytes(sizeof(Namespace) + attributes.size() * 4 * sizeof(Value));
  return Value(&namespaces_.emplace_back(Namespace{.attributes = std::move(attributes)}));
}

Value Heap::function(Function function) {
  charge_bytes(sizeof(Function));
  return Value(&functions_.emplace_back(std::move(function)));
}

Value Heap::object(std::unique_ptr<Object> object) {
  charge_bytes(256);
  return Value(objects_.emplace_back(std::move(object)).get());
}

Value Heap::undefined(std::string why) {
  charge_bytes(sizeof(std::string) + why.size());
  return Value::undefined(&reasons_.emplace_back(std::move(why)));
}

void TextBuilder::append(std::string_view more, Origin origin) {
  heap_.charge_bytes(more.size());
  bytes_.append(more, origin);
}

void TextBuilder::append(const Text& more) {
  // Runs are charged, too: a text of many short runs takes more memory than its bytes.
  more.for_each_run([&](std::string_view part, Origin origin) {
    heap_.charge_bytes(part.size() + sizeof(Run));
    bytes_.append(part, origin);
  });
}

void TextBuilder::repeat(std::string_view more, int64_t times, Origin origin) {
  if (times <= 0 || more.empty()) return;
  uint64_t total = 0;
  SPW_CHECK(!__builtin_mul_overflow(static_cast<uint64_t>(times), more.size(), &total),
            kInvalidArgument, "the chat template repeats a text {} times", times);
  heap_.charge_bytes(total);
  bytes_.bytes.reserve(bytes_.bytes.size() + total);
  for (int64_t i = 0; i < times; ++i) bytes_.append(more, origin);
}

Value TextBuilder::take(bool is_markup) {
  heap_.charge_bytes(sizeof(OriginBytes));
  OriginBytes& stored = heap_.bytes_of_texts_.emplace_back(std::move(bytes_));
  bytes_ = {};
  return heap_.text(stored.view().with_markup(is_markup));
}

}  // namespace spillway::jinja
