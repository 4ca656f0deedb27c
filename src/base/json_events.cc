// SPDX-License-Identifier: Apache-2.0
#include "base/json_events.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

// nlohmann's parser keeps all that it has read since the last string or number began, that string
// or number once more, and a stack of what is open. This bounds them before it starts. Returns how
// many values and keys the text has, if it is JSON.
uint64_t check_bounds(std::string_view text, const std::string& label, uint64_t base) {
  int depth = 0;
  bool in_string = false;
  bool in_number = false;
  bool just_opened = false;
  size_t kept_from = 0;
  uint64_t count = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    SPW_CHECK(i - kept_from <= kMaxJsonTokenBytes, kInvalidArgument,
              "{}: a string or number at byte {}, with what follows it, has more than {} bytes",
              label, base + kept_from, kMaxJsonTokenBytes);
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (just_opened && c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      just_opened = false;
      if (c != ']' && c != '}') ++count;  // the first value of its container
    }
    const bool begins_number = c == '-' || (c >= '0' && c <= '9');
    if (begins_number && !in_number) kept_from = i;
    in_number = begins_number || (in_number && (c == '.' || c == '+' || c == 'e' || c == 'E'));
    switch (c) {
      case '"':
        in_string = true;
        kept_from = i;
        break;
      case '[':
      case '{':
        ++depth;
        SPW_CHECK(depth <= kMaxJsonDepth, kInvalidArgument,
                  "{}: JSON at byte {} is nested deeper than {}", label, base + i, kMaxJsonDepth);
        just_opened = true;
        break;
      case ']':
      case '}':
        --depth;
        break;
      case ',':
      case ':':
        ++count;
        break;
      default:
        break;
    }
  }
  return count;
}

// Adapts nlohmann's SAX interface to JsonHandler.
class Sax {
 public:
  Sax(JsonHandler& handler, const std::string& label, uint64_t base)
      : handler_(handler), label_(label), base_(base) {}

  bool null() { return handler_.null(), true; }
  bool boolean(bool v) { return handler_.boolean(v), true; }
  bool number_integer(int64_t v) { return handler_.integer(v), true; }
  bool number_unsigned(uint64_t v) {
    if (v <= static_cast<uint64_t>(INT64_MAX)) {
      handler_.integer(static_cast<int64_t>(v));
    } else {
      handler_.large_unsigned(v);
    }
    return true;
  }
  bool number_float(double v, const std::string&) { return handler_.number(v), true; }
  bool string(std::string& v) { return handler_.string(v), true; }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(size_t) { return handler_.start_object(), true; }
  bool key(std::string& v) { return handler_.key(v), true; }
  bool end_object() { return handler_.end_object(), true; }
  bool start_array(size_t) { return handler_.start_array(), true; }
  bool end_array() { return handler_.end_array(), true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..."
    std::string_view what = error.what();
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos)
      what.remove_prefix(bracket + 2);
    fail(ErrorCode::kInvalidArgument, "{}: not valid JSON at byte {}: {}", label_,
         base_ + (position > 0 ? position - 1 : 0), printable(what, 200));
  }

 private:
  JsonHandler& handler_;
  const std::string& label_;
  uint64_t base_;
};

}  // namespace

void read_json_events(std::string_view text, const std::string& label, JsonHandler& handler,
                      uint64_t base) {
  handler.expect(check_bounds(text, label, base));
  Sax sax(handler, label, base);
  const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), &sax);
  SPW_CHECK(complete, kInvalidArgument, "{}: not valid JSON", label);
}

}  // namespace spillway
