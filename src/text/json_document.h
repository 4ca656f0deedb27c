// SPDX-License-Identifier: Apache-2.0
// Parses JSON into a compact tree: 16 bytes for each value and key, with strings left in the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

// A value or a key. A container is followed by its contents, in an object each key by its value.
struct JsonNode {
  enum class Kind : uint8_t { kNull, kFalse, kTrue, kInteger, kNumber, kString, kArray, kObject };
  union {
    int64_t integer = 0;
    const char* text;
    uint64_t nodes;  // nodes of a container, including itself and all inside
  };
  uint32_t size = 0;  // bytes of a string, elements of an array, members of an object
  Kind kind = Kind::kNull;
};

// Refers to a value of a JsonDocument, which must outlive it. Callers check the kind first
// (is_string() before string()): the accessors do not.
class JsonValue {
 public:
  explicit JsonValue(const JsonNode& node) : node_(&node) {}

  bool is_null() const { return node_->kind == JsonNode::Kind::kNull; }
  bool is_string() const { return node_->kind == JsonNode::Kind::kString; }
  bool is_integer() const { return node_->kind == JsonNode::Kind::kInteger; }  // of 64 bits
  bool is_boolean() const { return is_true() || node_->kind == JsonNode::Kind::kFalse; }
  bool is_true() const { return node_->kind == JsonNode::Kind::kTrue; }
  bool is_array() const { return node_->kind == JsonNode::Kind::kArray; }
  bool is_object() const { return node_->kind == JsonNode::Kind::kObject; }

  std::string_view string() const { return {node_->text, node_->size}; }
  int64_t integer() const { return node_->integer; }
  size_t size() const { return node_->size; }

  // Calls fn(JsonValue) for each element of an array.
  template <class Fn>
  void for_each_element(Fn&& fn) const {
    const JsonNode* child = node_ + 1;
    for (uint32_t i = 0; i < node_->size; ++i, child = after(child)) fn(JsonValue(*child));
  }
  // Calls fn(std::string_view key, JsonValue) for each member of an object, in the order of the
  // text.
  template <class Fn>
  void for_each_member(Fn&& fn) const {
    const JsonNode* child = node_ + 1;
    for (uint32_t i = 0; i < node_->size; ++i, child = after(child + 1))
      fn(JsonValue(*child).string(), JsonValue(child[1]));
  }
  // Returns an element by walking from the first, so it is meant for small indices. `index` must be
  // below size().
  JsonValue element(size_t index) const;
  // Finds a member by walking all of them; the last one wins if several have that name.
  [[nodiscard]] std::optional<JsonValue> try_member(std::string_view key) const;

 private:
  static const JsonNode* after(const JsonNode* node) {
    const bool container =
        node->kind == JsonNode::Kind::kArray || node->kind == JsonNode::Kind::kObject;
    return node + (container ? node->nodes : 1);
  }
  const JsonNode* node_;
};

// Owns the nodes and the strings that had escapes. Refers to `text`, which must outlive it.
// Immutable and thread-safe.
class JsonDocument {
 public:
  // A tokenizer with 260,000 tokens and 580,000 merges has 2.3 million nodes.
  static constexpr uint64_t kMaxNodes = 3'500'000;

  // Throws kInvalidArgument, with `label` in the message, for whatever read_json_events() refuses
  // and for more than kMaxNodes values and keys.
  JsonDocument(std::string_view text, const std::string& label);

  JsonValue root() const { return JsonValue(nodes_.front()); }

 private:
  std::vector<JsonNode> nodes_;
  std::vector<std::string> unescaped_;  // must not be reallocated: nodes point into them
};

}  // namespace spillway
