// SPDX-License-Identifier: Apache-2.0
#include "serve/json_bounds.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/printable.h"
#include "serve/api_error.h"

namespace spillway {
namespace {

class BoundsCheck {
 public:
  BoundsCheck(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  JsonSize run() {
    for (at_ = 0; at_ < text_.size(); ++at_) take(text_[at_]);
    return size_;
  }

 private:
  void take(char c) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return;
    if (just_opened_ && c != ']' && c != '}') count_value();  // the first value of its container
    just_opened_ = false;
    switch (c) {
      case '"':
        skip_string();
        break;
      case '[':
      case '{':
        open();
        break;
      case ']':
      case '}':
        if (!members_.empty()) members_.pop_back();
        break;
      case ',':
        count_value();
        break;
      case ':':
        count_member();
        break;
      default:
        break;
    }
  }

  void skip_string() {
    const size_t begin = ++at_;
    size_t escaped = 0;  // bytes of escapes beyond the one that each counts as
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') {
        const bool is_unicode = at_ + 1 < text_.size() && text_[at_ + 1] == 'u';
        const size_t more = is_unicode ? 5 : 1;
        at_ += more;
        escaped += more;
      }
      ++at_;
    }
    if (at_ > text_.size()) at_ = text_.size();
    last_string_ = text_.substr(begin, at_ - begin);
    const size_t bytes = last_string_.size() - std::min(escaped, last_string_.size());
    size_.text_bytes += bytes;
    if (bytes <= limits_.string_bytes) return;
    throw ApiError(400, "context_length_exceeded", printable(field_, 40),
                   fmt::format("{} bytes of text are more than a context of {} tokens can hold; "
                               "shorten it",
                               bytes, limits_.context_tokens));
  }

  void open() {
    members_.push_back(0);
    just_opened_ = true;
    if (members_.size() > static_cast<size_t>(limits_.depth))
      throw ApiError(400, "invalid_json", "",
                     fmt::format("the JSON is nested deeper than {}", limits_.depth));
  }

  void count_value() {
    if (++size_.values <= limits_.values) return;
    throw ApiError(413, "request_too_large", printable(field_, 40),
                   fmt::format("the body has more than {} values; send less, or several requests",
                               limits_.values));
  }

  void count_member() {
    if (members_.size() == 1) field_ = last_string_;
    if (members_.empty() || ++members_.back() <= limits_.members) return;
    throw ApiError(400, "invalid_json", "",
                   fmt::format("an object has more than {} members", limits_.members));
  }

  std::string_view text_;
  const JsonLimits& limits_;
  size_t at_ = 0;
  bool just_opened_ = false;
  std::vector<int> members_;      // member counts of the open containers
  std::string_view last_string_;  // as written, with escapes
  std::string_view field_;        // the field of the body that is being read
  JsonSize size_ = {.values = 1};
};

}  // namespace

JsonSize check_json_bounds(std::string_view text, const JsonLimits& limits) {
  return BoundsCheck(text, limits).run();
}

}  // namespace spillway
