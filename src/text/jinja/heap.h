// SPDX-License-Identifier: Apache-2.0
// Owns all values that one rendering makes, and counts them, so that hostile templates end at a
// limit.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/dict.h"
#include "text/jinja/jinja_options.h"
#include "text/jinja/value.h"

namespace spillway::jinja {

// Values live until the rendering ends, so there are no cycles to break and nothing is freed
// recursively. The limit on bytes counts everything ever made. Not thread-safe.
class Heap {
 public:
  explicit Heap(const JinjaLimits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const JinjaLimits& limits() const { return limits_; }

  // These throw Error(kInvalidArgument) at the limit.
  void charge_steps(uint64_t steps);
  void charge_bytes(uint64_t bytes);
  // Charges for a function that looks at every byte of a text.
  void charge_scan(size_t bytes) { charge_steps(1 + bytes / 64); }

  Value text(const Text& text);  // the bytes must live as long as the heap
  Value text(std::string bytes, Origin origin);
  // Makes a value of a constant of the program; it counts as written in the template.
  Value constant(std::string_view text) { return this->text(Text(text, Origin::kTemplate)); }
  Value list(std::vector<Value> items, Sequence sequence = Sequence::kList);
  Value tuple(std::vector<Value> items) { return list(std::move(items), Sequence::kTuple); }
  Value group(const Value& grouper, const Value& members);
  Value range(int64_t start, int64_t stop, int64_t step);
  Value dict(Dict dict);
  Value iterator(std::vector<Value> items);
  Value name_space(Dict attributes);
  Value function(Function function);
  Value object(std::unique_ptr<Object> object);
  Value undefined(std::string why);

 private:
  friend class TextBuilder;
  const JinjaLimits limits_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  std::deque<OriginBytes> bytes_of_texts_;
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Iterator> iterators_;
  std::deque<Namespace> namespaces_;
  std::deque<Function> functions_;
  std::deque<std::unique_ptr<Object>> objects_;
  std::deque<std::string> reasons_;
};

// Builds a text, and charges the heap while it grows.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}
  void append(std::string_view more, Origin origin);
  void append(const Text& more);
  void repeat(std::string_view more, int64_t times, Origin origin);
  size_t size() const { return bytes_.bytes.size(); }
  Value take(bool is_markup = false);
  OriginBytes take_bytes() { return std::move(bytes_); }

 private:
  Heap& heap_;
  OriginBytes bytes_;
};

}  // namespace spillway::jinja
