// SPDX-License-Identifier: Apache-2.0
#include "text/json_document.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_events.h"

namespace spillway {
namespace {

using Kind = JsonNode::Kind;

class Builder final : public JsonHandler {
 public:
  Builder(std::string_view text, const std::string& label, std::vector<JsonNode>& nodes,
          std::vector<std::string>& unescaped)
      : text_(text), label_(label), nodes_(nodes), unescaped_(unescaped) {}

  void expect(uint64_t count) override {
    SPW_CHECK(count <= JsonDocument::kMaxNodes, kInvalidArgument,
              "{}: {} values and keys are too many (limit {})", label_, count,
              JsonDocument::kMaxNodes);
    nodes_.reserve(count);
  }
  void start_object() override { open(Kind::kObject); }
  void end_object() override { close(); }
  void start_array() override { open(Kind::kArray); }
  void end_array() override { close(); }
  void key(std::string& name) override { nodes_.push_back(string_node(name)); }
  void string(std::string& value) override { add(Kind::kString) = string_node(value); }
  void integer(int64_t value) override { add(Kind::kInteger).integer = value; }
  void large_unsigned(uint64_t) override { add(Kind::kNumber); }
  void number(double) override { add(Kind::kNumber); }
  void boolean(bool value) override { add(value ? Kind::kTrue : Kind::kFalse); }
  void null() override { add(Kind::kNull); }

 private:
  JsonNode& add(Kind kind) {
    if (!open_.empty()) ++nodes_[open_.back()].size;
    JsonNode& node = nodes_.emplace_back();
    node.kind = kind;
    return node;
  }
  void open(Kind kind) {
    add(kind);
    open_.push_back(nodes_.size() - 1);
  }
  void close() {
    nodes_[open_.back()].nodes = nodes_.size() - open_.back();
    open_.pop_back();
  }

  // Returns a node for the string that the parser has just read. The parser hands out copies, but
  // the string stands in the text after the next quote; if it has no escapes, the node points
  // there.
  JsonNode string_node(const std::string& value) {
    const size_t begin = text_.find('"', position_) + 1;
    size_t end = begin;
    while (text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    position_ = end + 1;
    const bool plain = end - begin == value.size();  // an escape is longer than its character
    JsonNode node;
    node.text = plain ? text_.data() + begin : keep(value);
    node.size = static_cast<uint32_t>(value.size());
    node.kind = Kind::kString;
    return node;
  }
  const char* keep(const std::string& value) {
    constexpr size_t kChunkBytes = 65536;
    if (unescaped_.empty() ||
        unescaped_.back().capacity() - unescaped_.back().size() < value.size()) {
      unescaped_.emplace_back().reserve(std::max(kChunkBytes, value.size()));
    }
    std::string& chunk = unescaped_.back();
    chunk += value;
    return chunk.data() + chunk.size() - value.size();
  }

  std::string_view text_;
  const std::string& label_;
  std::vector<JsonNode>& nodes_;
  std::vector<std::string>& unescaped_;
  std::vector<size_t> open_;  // indices of the open containers
  size_t position_ = 0;       // position in the text after the last string
};

}  // namespace

JsonValue JsonValue::element(size_t index) const {
  const JsonNode* child = node_ + 1;
  while (index-- > 0) child = after(child);
  return JsonValue(*child);
}

std::optional<JsonValue> JsonValue::try_member(std::string_view key) const {
  std::optional<JsonValue> found;
  for_each_member([&](std::string_view name, JsonValue value) {
    if (name == key) found = value;
  });
  return found;
}

JsonDocument::JsonDocument(std::string_view text, const std::string& label) {
  Builder builder(text, label, nodes_, unescaped_);
  read_json_events(text, label, builder);
}

}  // namespace spillway
