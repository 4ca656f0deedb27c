// SPDX-License-Identifier: Apache-2.0
// Implements Python's dict and the namespaces of templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace spillway::jinja {

// Keeps keys in the order in which they were added. Keys must be hashable in Python; others throw
// Error(kInvalidArgument). 1, 1.0 and true are the same key.
class Dict {
 public:
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  [[nodiscard]] std::optional<Value> try_find(const Value& key) const;
  [[nodiscard]] std::optional<Value> try_find(std::string_view key) const;
  void set(const Value& key, const Value& value);

 private:
  std::optional<size_t> try_position(const Value& key, uint64_t hash) const;
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_multimap<uint64_t, size_t> positions_;  // by hash, once there are many
};

struct Namespace {
  Dict attributes;
};

}  // namespace spillway::jinja
