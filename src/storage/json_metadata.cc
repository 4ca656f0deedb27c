// SPDX-License-Identifier: Apache-2.0
#include "storage/json_metadata.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_events.h"
#include "base/printable.h"

namespace spillway {
namespace {

// Collects the elements of an array while it is read.
class ArrayBuilder {
 public:
  void add_string(const std::string& value) {
    if (expect(Kind::kStrings)) strings_.push_back(value);
  }
  void add_bool(bool value) {
    if (expect(Kind::kBools)) append(NumberType::kBool, static_cast<uint8_t>(value));
  }
  void add_int(int64_t value) {
    if (kind_ == Kind::kFloats) return add_double(static_cast<double>(value));
    if (expect(Kind::kInts)) append(NumberType::kI64, value);
  }
  void add_double(double value) {
    if (kind_ == Kind::kInts) become_floats();
    if (expect(Kind::kFloats)) append(NumberType::kF64, value);
  }
  // Counts an element that is not kept: a nested value or a null.
  void add_other() { expect(Kind::kMixed); }
  size_t count() const { return count_; }

  Value take() {
    if (kind_ == Kind::kMixed) return MixedArray{count_};
    if (kind_ == Kind::kStrings) return std::move(strings_);
    return std::move(numbers_);
  }

 private:
  enum class Kind { kEmpty, kStrings, kBools, kInts, kFloats, kMixed };

  bool expect(Kind kind) {
    ++count_;
    if (kind_ == Kind::kEmpty) kind_ = kind;
    if (kind_ != kind) {
      kind_ = Kind::kMixed;
      strings_ = {};
      numbers_ = {};
    }
    return kind_ == kind && kind != Kind::kMixed;
  }
  template <class T>
  void append(NumberType type, T value) {
    numbers_.type = type;
    const auto bytes = std::as_bytes(std::span(&value, 1));
    numbers_.raw.insert(numbers_.raw.end(), bytes.begin(), bytes.end());
  }
  void become_floats() {
    const NumberArray ints = std::exchange(numbers_, {});
    for (size_t i = 0; i < ints.size(); ++i) append(NumberType::kF64, ints.number(i));
    kind_ = Kind::kFloats;
  }

  Kind kind_ = Kind::kEmpty;
  size_t count_ = 0;
  StringArray strings_;
  NumberArray numbers_;
};

class Flattener final : public JsonHandler {
 public:
  Flattener(const std::string& label, std::string_view prefix, Metadata& metadata)
      : label_(label), path_(prefix), metadata_(metadata) {}

  void start_object() override { open(false); }
  void end_object() override { close(); }
  void start_array() override { open(true); }
  void end_array() override {
    path_.resize(frames_.back().path_bytes);
    metadata_.add(path_, frames_.back().elements.take());
    close();
  }
  void key(std::string& name) override {
    path_.resize(frames_.back().path_bytes);
    append_path(name);
  }
  void string(std::string& value) override {
    if (ArrayBuilder* array = in_array()) return array->add_string(value);
    add(std::move(value));
  }
  void integer(int64_t value) override {
    if (ArrayBuilder* array = in_array()) return array->add_int(value);
    add(value);
  }
  void large_unsigned(uint64_t value) override {
    if (ArrayBuilder* array = in_array()) return array->add_double(static_cast<double>(value));
    add(value);
  }
  void number(double value) override {
    if (ArrayBuilder* array = in_array()) return array->add_double(value);
    add(value);
  }
  void boolean(bool value) override {
    if (ArrayBuilder* array = in_array()) return array->add_bool(value);
    add(value);
  }
  void null() override {
    if (ArrayBuilder* array = in_array()) return array->add_other();
    check_object();
  }

 private:
  struct Frame {
    bool is_array = false;
    size_t path_bytes = 0;  // length of the container's own path
    ArrayBuilder elements;
  };

  void check_object() const {
    SPW_CHECK(!frames_.empty(), kInvalidArgument, "{}: expected a JSON object", label_);
  }
  ArrayBuilder* in_array() {
    check_object();
    return frames_.back().is_array ? &frames_.back().elements : nullptr;
  }
  void add(Value value) { metadata_.add(path_, std::move(value)); }

  void append_path(std::string_view name) {
    SPW_CHECK(path_.size() + name.size() < Metadata::kMaxKeyBytes, kInvalidArgument,
              "{}: key '{}' with its path has more than {} bytes", label_, printable(name, 40),
              Metadata::kMaxKeyBytes);
    // The prefix given by the caller already ends in a dot.
    if (frames_.size() > 1) path_ += '.';
    path_ += name;
  }
  void open(bool is_array) {
    if (is_array) check_object();
    if (!frames_.empty() && frames_.back().is_array) {
      ArrayBuilder& parent = frames_.back().elements;
      parent.add_other();
      append_path(fmt::format("{}", parent.count() - 1));
    }
    frames_.push_back({is_array, path_.size(), {}});
  }
  void close() {
    frames_.pop_back();
    if (!frames_.empty() && frames_.back().is_array) path_.resize(frames_.back().path_bytes);
  }

  const std::string& label_;
  std::string path_;
  Metadata& metadata_;
  std::vector<Frame> frames_;
};

}  // namespace

void flatten_json(std::string_view text, const std::string& label, std::string_view prefix,
                  Metadata& metadata) {
  Flattener flattener(label, prefix, metadata);
  read_json_events(text, label, flattener);
}

}  // namespace spillway
