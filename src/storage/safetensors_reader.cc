// SPDX-License-Identifier: Apache-2.0
#include "storage/safetensors_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/json_events.h"
#include "base/printable.h"
#include "storage/byte_cursor.h"
#include "storage/tensor_layout.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxNameBytes = 1024;
constexpr std::string_view kMetadataName = "__metadata__";

// Handles {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__":
// {...}}.
class HeaderHandler final : public JsonHandler {
 public:
  HeaderHandler(const ByteSource& source, int32_t file, uint64_t data_start, ModelFiles& model)
      : source_(source), file_(file), data_start_(data_start), model_(model) {}

  void start_object() override {
    ++depth_;
    if (depth_ == 2 && !in_metadata()) entry_ = {};
    if (depth_ > 2 && !in_metadata()) fail_entry("has an object inside");
    if (in_array_) fail_entry("has an object inside an array");
  }
  void end_object() override {
    if (depth_ == 2 && !in_metadata()) finish_tensor();
    --depth_;
  }
  void key(std::string& name) override {
    if (depth_ == 1) {
      SPW_CHECK(!name.empty(), kInvalidArgument, "{}: a tensor in the header has an empty name",
                source_.label());
      SPW_CHECK(name.size() <= kMaxNameBytes, kInvalidArgument,
                "{}: tensor '{}' has a name of {} bytes, over {}", source_.label(),
                printable(name, 40), name.size(), kMaxNameBytes);
      name_ = std::move(name);
      SPW_CHECK(!in_metadata() || !std::exchange(metadata_seen_, true), kInvalidArgument,
                "{}: '{}' is there twice in the header", source_.label(), kMetadataName);
    } else if (!in_metadata()) {
      field_ = std::move(name);
    }
  }
  void start_array() override {
    check_in_object();
    if (in_metadata()) return;
    if (in_array_ || depth_ != 2) fail_entry("has an array where none belongs");
    in_array_ = true;
    std::optional<std::vector<uint64_t>>* numbers = array_field();
    if (numbers != nullptr) {
      if (numbers->has_value()) fail_entry("has a field twice");
      numbers->emplace();
    }
  }
  void end_array() override { in_array_ = false; }
  void string(std::string& value) override {
    check_in_object();
    if (in_metadata()) return;
    if (depth_ == 1) fail_entry("is a string, expected an object");
    if (field_ == "dtype" && !in_array_) {
      if (!entry_.dtype.empty()) fail_entry("has a field twice");
      if (value.empty() || value.size() > 32) fail_entry("has a dtype that is no type's name");
      entry_.dtype = std::move(value);
    } else {
      unexpected();
    }
  }
  void integer(int64_t value) override {
    check_in_object();
    if (in_metadata()) return;
    if (value < 0) fail_entry("has a negative number");
    add_number(static_cast<uint64_t>(value));
  }
  void large_unsigned(uint64_t value) override {
    check_in_object();
    if (!in_metadata()) add_number(value);
  }
  void number(double) override { unexpected(); }
  void boolean(bool) override { unexpected(); }
  void null() override { unexpected(); }

 private:
  struct Entry {
    std::string dtype;
    std::optional<std::vector<uint64_t>> shape;
    std::optional<std::vector<uint64_t>> offsets;
  };

  bool in_metadata() const { return depth_ >= 1 && name_ == kMetadataName; }
  std::string prefix() const {
    return fmt::format("{}: tensor '{}': ", source_.label(), printable(name_));
  }
  [[noreturn]] void fail_entry(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "{}: tensor '{}' in the header {} (field '{}')",
         source_.label(), printable(name_), what, printable(field_));
  }
  void check_in_object() const {
    SPW_CHECK(depth_ > 0, kInvalidArgument, "{}: the header at byte 8 is not a JSON object",
              source_.label());
  }
  void unexpected() const {
    check_in_object();
    if (!in_metadata()) fail_entry("has a value of the wrong type");
  }

  std::optional<std::vector<uint64_t>>* array_field() {
    if (field_ == "shape") return &entry_.shape;
    if (field_ == "data_offsets") return &entry_.offsets;
    return nullptr;
  }
  void add_number(uint64_t value) {
    std::optional<std::vector<uint64_t>>* numbers = array_field();
    if (depth_ != 2 || !in_array_ || numbers == nullptr) unexpected();
    if ((*numbers)->size() == kMaxDims) fail_entry("has too many numbers");
    (*numbers)->push_back(value);
  }

  // Checks the entry and appends it to the model.
  void finish_tensor() {
    field_.clear();
    if (entry_.dtype.empty()) fail_entry("lacks its dtype");
    if (!entry_.shape) fail_entry("lacks its shape");
    if (!entry_.offsets || entry_.offsets->size() != 2) fail_entry("lacks its two data_offsets");
    const uint64_t begin = (*entry_.offsets)[0];
    const uint64_t end = (*entry_.offsets)[1];
    SPW_CHECK(begin <= end, kInvalidArgument, "{}data_offsets {} to {} run backwards", prefix(),
              begin, end);
    const auto offset = try_add(data_start_, begin);
    SPW_CHECK(offset.has_value(), kInvalidArgument, "{}data_offsets {} overflow", prefix(), begin);
    check_extent(prefix(), *offset, end - begin, source_.size());
    SPW_CHECK(model_.tensors.size() + model_.unsupported.size() < ModelFiles::kMaxTensors,
              kInvalidArgument, "{}: more than {} tensors", source_.label(),
              ModelFiles::kMaxTensors);

    const std::optional<DType> dtype = try_plain_dtype(entry_.dtype);
    const bool no_elements = std::ranges::find(*entry_.shape, 0u) != entry_.shape->end();
    if (!dtype || no_elements) {
      const std::string type = printable(entry_.dtype) + (no_elements ? " without elements" : "");
      model_.unsupported.push_back({std::move(name_), type});
      return;
    }
    // A value that does not fit int64 becomes negative, which checked_tensor_bytes() refuses.
    const std::vector<int64_t> shape(entry_.shape->begin(), entry_.shape->end());
    const uint64_t bytes = checked_tensor_bytes(prefix(), *dtype, shape);
    SPW_CHECK(bytes == end - begin, kInvalidArgument,
              "{}data_offsets {} to {} are {} bytes, but {} of {} takes {}", prefix(), begin, end,
              end - begin, format_shape(shape), entry_.dtype, bytes);
    model_.tensors.push_back({std::move(name_), *dtype, shape, {file_, *offset, bytes}});
  }

  const ByteSource& source_;
  int32_t file_;
  uint64_t data_start_;
  ModelFiles& model_;
  int depth_ = 0;
  bool in_array_ = false;
  bool metadata_seen_ = false;
  std::string name_;
  std::string field_;
  Entry entry_;
};

}  // namespace

void parse_safetensors(const ByteSource& source, int32_t file, ModelFiles& model) {
  ByteCursor cursor(source);
  const auto length = cursor.read<uint64_t>("header length");
  SPW_CHECK(length <= kMaxHeaderBytes, kInvalidArgument,
            "{}: header length {} at byte 0 is over {}; not a safetensors file?", source.label(),
            length, kMaxHeaderBytes);
  cursor.require(length, "header");
  std::string header(length, '\0');
  cursor.read_bytes(std::as_writable_bytes(std::span(header)), "header");
  HeaderHandler handler(source, file, cursor.position(), model);
  read_json_events(header, source.label(), handler, sizeof(length));
}

}  // namespace spillway
