// SPDX-License-Identifier: Apache-2.0
// Strings that record which of their bytes came from the template and which from its input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::jinja {

enum class Origin : uint8_t {
  kInput,     // from a user; never names a control token
  kTemplate,  // written in the template, or in a variable trusted like it
};

// The end of a stretch of bytes of one origin, counted from the start of the text.
struct Run {
  size_t end = 0;
  Origin origin = Origin::kInput;
};

// A view of bytes that it does not own, so taking a part of it costs nothing. Most texts have one
// origin and no runs. The bytes need not be valid UTF-8.
class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin) : bytes_(bytes), origin_(origin) {}
  // `runs` cover `bytes`; both must outlive the text.
  Text(std::string_view bytes, const std::vector<Run>& runs);

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Returns the text's origin, or that of its first byte if there are several.
  Origin first_origin() const { return origin_; }

  Text part(size_t begin, size_t bytes = std::string_view::npos) const;
  // Returns the part of this text at `view`, which must lie within bytes().
  Text part(std::string_view view) const;

  // Calls fn(std::string_view, Origin) for each stretch of one origin.
  template <class Fn>
  void for_each_run(Fn&& fn) const {
    if (runs_ == nullptr) {
      if (!bytes_.empty()) fn(bytes_, origin_);
      return;
    }
    size_t at = 0;
    for (size_t i = first_run(); at < bytes_.size(); ++i) {
      const size_t end = std::min((*runs_)[i].end - offset_, bytes_.size());
      fn(bytes_.substr(at, end - at), (*runs_)[i].origin);
      at = end;
    }
  }

  // Whether the text was declared safe for HTML; text added to it is escaped, as in Python.
  bool is_markup() const { return is_markup_; }
  Text with_markup(bool is_markup) const;

 private:
  size_t first_run() const;  // the index of the run that offset_ lies in
  std::string_view bytes_;
  const std::vector<Run>* runs_ = nullptr;  // null if all bytes have origin_
  size_t offset_ = 0;                       // position of bytes_ in the text that runs_ cover
  Origin origin_ = Origin::kTemplate;
  bool is_markup_ = false;
};

// Collects bytes with their origins.
struct OriginBytes {
  std::string bytes;
  std::vector<Run> runs;

  void append(std::string_view more, Origin origin);
  void append(const Text& more);
  // Returns a view of bytes and runs, which must not change while it is used.
  Text view() const { return Text(bytes, runs); }
};

}  // namespace spillway::jinja
