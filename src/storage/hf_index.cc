// SPDX-License-Identifier: Apache-2.0
#include "storage/hf_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/json_events.h"
#include "base/printable.h"
#include "storage/tensor_index.h"

namespace spillway {
namespace {

constexpr size_t kMaxIndexNameBytes = 1024;
constexpr size_t kMaxShards = 16384;

// Handles {"metadata": {...}, "weight_map": {"tensor": "shard.safetensors", ...}}.
class IndexHandler final : public JsonHandler {
 public:
  IndexHandler(const std::string& label, std::string_view ending)
      : label_(label), ending_(ending) {}

  void start_object() override {
    if (in_map_) not_a_name();
    ++depth_;
    if (depth_ == 2 && key_ == "weight_map") {
      SPW_CHECK(!std::exchange(seen_, true), kInvalidArgument, "{}: two weight_maps", label_);
      in_map_ = true;
    }
  }
  void end_object() override {
    if (in_map_) in_map_ = false;
    --depth_;
  }
  void key(std::string& name) override {
    if (depth_ == 1 || in_map_) key_ = std::move(name);
  }
  void start_array() override {
    if (in_map_) not_a_name();
    ++depth_;
  }
  void end_array() override { --depth_; }
  void string(std::string& value) override {
    if (in_map_) add(std::move(value));
  }
  void integer(int64_t) override { ignore(); }
  void large_unsigned(uint64_t) override { ignore(); }
  void number(double) override { ignore(); }
  void boolean(bool) override { ignore(); }
  void null() override { ignore(); }

  HfIndex take() {
    SPW_CHECK(seen_, kInvalidArgument, "{}: no weight_map object", label_);
    // Shards are sorted by name, so that Extent::file does not depend on their order in the index.
    std::vector<int32_t> order(shards_.size());
    for (auto& [name, number] : shards_) {
      order[static_cast<size_t>(number)] = static_cast<int32_t>(index_.shards.size());
      index_.shards.push_back(name);
    }
    for (HfIndex::Entry& entry : index_.tensors)
      entry.shard = order[static_cast<size_t>(entry.shard)];
    std::ranges::sort(index_.tensors, {}, &HfIndex::Entry::tensor);
    for (size_t i = 1; i < index_.tensors.size(); ++i) {
      SPW_CHECK(index_.tensors[i - 1].tensor != index_.tensors[i].tensor, kInvalidArgument,
                "{}: tensor '{}' is there twice", label_, printable(index_.tensors[i].tensor));
    }
    return std::move(index_);
  }

 private:
  [[noreturn]] void not_a_name() const {
    fail(ErrorCode::kInvalidArgument, "{}: weight_map['{}'] is not a file name", label_,
         printable(key_));
  }
  void ignore() const {
    if (in_map_) not_a_name();
  }
  void add(std::string shard) {
    SPW_CHECK(!key_.empty() && key_.size() <= kMaxIndexNameBytes, kInvalidArgument,
              "{}: a tensor name in weight_map has {} bytes, expected 1 to {}", label_, key_.size(),
              kMaxIndexNameBytes);
    SPW_CHECK(index_.tensors.size() < ModelFiles::kMaxTensors, kInvalidArgument,
              "{}: more than {} tensors", label_, ModelFiles::kMaxTensors);
    // No file outside the model's folder may be opened, whatever the index says.
    const bool bare = shard.size() <= 255 && shard.ends_with(ending_) &&
                      shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    SPW_CHECK(bare, kInvalidArgument,
              "{}: weight_map['{}'] is '{}', expected the bare name of a {} file", label_,
              printable(key_), printable(shard), ending_);
    const auto number = static_cast<int32_t>(shards_.size());
    const auto [it, inserted] = shards_.emplace(std::move(shard), number);
    SPW_CHECK(shards_.size() <= kMaxShards, kInvalidArgument, "{}: more than {} shards", label_,
              kMaxShards);
    index_.tensors.push_back({std::move(key_), it->second});
  }

  const std::string& label_;
  std::string_view ending_;  // of a shard's name
  int depth_ = 0;
  bool in_map_ = false;
  bool seen_ = false;
  std::string key_;
  std::map<std::string, int32_t> shards_;
  HfIndex index_;
};

}  // namespace

HfIndex parse_hf_index(std::string_view text, const std::string& label, std::string_view ending) {
  IndexHandler handler(label, ending);
  read_json_events(text, label, handler);
  return handler.take();
}

}  // namespace spillway
