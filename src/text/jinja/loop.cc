// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/loop.h"

#include <fmt/core.h>

#include <utility>

#include "base/error.h"
#include "text/jinja/arguments.h"
#include "text/jinja/compare.h"

namespace spillway::jinja {

LoopObject::LoopObject(Heap& heap, std::vector<Value> items, int64_t depth,
                       std::function<Value(const Value&)> recurse)
    : heap_(heap),
      own_items_(std::move(items)),
      items_(own_items_),
      length_(static_cast<int64_t>(items_.size())),
      depth_(depth),
      recurse_(std::move(recurse)) {}

LoopObject::LoopObject(Heap& heap, const List& list, int64_t depth,
                       std::function<Value(const Value&)> recurse)
    : heap_(heap),
      items_(list.items),
      length_(static_cast<int64_t>(items_.size())),
      depth_(depth),
      recurse_(std::move(recurse)) {}

void LoopObject::finish() {
  items_ = {};
  own_items_ = {};
}

Value LoopObject::neighbour(bool exists, size_t index, const char* which) const {
  if (exists && index < items_.size()) return items_[index];
  return heap_.undefined(fmt::format("there is no {} item", which));
}

std::optional<Value> LoopObject::try_attribute(std::string_view name) {
  const auto index = static_cast<int64_t>(index_);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length_ - index;
  if (name == "revindex0") return length_ - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == length_;
  if (name == "length") return length_;
  if (name == "depth") return depth_;
  if (name == "depth0") return depth_ - 1;
  if (name == "previtem") return neighbour(index > 0, index_ - 1, "previous");
  if (name == "nextitem") return neighbour(index + 1 < length_, index_ + 1, "next");
  if (name == "cycle") {
    if (!cycle_function_)
      cycle_function_ = heap_.function({.name = "cycle",
                                        .call = [this](const Arguments& a) { return cycle(a); },
                                        .attributes = {}});
    return *cycle_function_;
  }
  if (name == "changed") {
    if (!changed_function_)
      changed_function_ = heap_.function({.name = "changed",
                                          .call = [this](const Arguments& a) { return changed(a); },
                                          .attributes = {}});
    return *changed_function_;
  }
  return std::nullopt;
}

Value LoopObject::cycle(const Arguments& arguments) const {
  SPW_CHECK(!arguments.positional.empty() && arguments.named.empty(), kInvalidArgument,
            "loop.cycle() wants at least one value");
  return arguments.positional[index_ % arguments.positional.size()];
}

Value LoopObject::changed(const Arguments& arguments) {
  const std::vector<Value>& values = arguments.positional;
  bool same = last_changed_ && last_changed_->size() == values.size();
  for (size_t i = 0; same && i < values.size(); ++i)
    same = equals(heap_, (*last_changed_)[i], values[i]);
  last_changed_ = values;
  return !same;
}

Value LoopObject::call(const Arguments& arguments) {
  SPW_CHECK(recurse_ != nullptr, kInvalidArgument,
            "loop() wants a loop that is marked 'recursive'");
  const Parameters given("loop()", arguments, {"iterable"});
  return recurse_(given.value(0));
}

}  // namespace spillway::jinja
