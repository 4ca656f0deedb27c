// SPDX-License-Identifier: Apache-2.0
// Implements the variable `loop` of a for statement.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "text/jinja/heap.h"

namespace spillway::jinja {

class LoopObject : public Object {
 public:
  // `recurse` runs the loop again over other items; it is empty if the loop is not recursive.
  LoopObject(Heap& heap, std::vector<Value> items, int64_t depth,
             std::function<Value(const Value&)> recurse);
  // The items of a list are referred to, not copied.
  LoopObject(Heap& heap, const List& list, int64_t depth,
             std::function<Value(const Value&)> recurse);

  std::span<const Value> items() const { return items_; }
  void go_to(size_t index) { index_ = index; }
  // Ends the loop. The template may keep the object and read it, but its items are gone.
  void finish();

  std::string_view type_name() const override { return "LoopContext"; }
  [[nodiscard]] std::optional<Value> try_attribute(std::string_view name) override;
  Value call(const Arguments& arguments) override;

 private:
  Value cycle(const Arguments& arguments) const;
  Value changed(const Arguments& arguments);
  Value neighbour(bool exists, size_t index, const char* which) const;

  Heap& heap_;
  std::vector<Value> own_items_;
  std::span<const Value> items_;
  int64_t length_;
  size_t index_ = 0;
  int64_t depth_;
  std::function<Value(const Value&)> recurse_;
  std::optional<std::vector<Value>> last_changed_;
  std::optional<Value> cycle_function_;  // created once: templates use them in every iteration
  std::optional<Value> changed_function_;
};

}  // namespace spillway::jinja
