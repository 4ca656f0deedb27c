// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/characters.h"
#include "text/jinja/number_text.h"
#include "text/jinja/string_literal.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

constexpr size_t kMostBrackets = 200;

// Turns all line ends into \n and removes the last one.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text.push_back('\n');
    } else {
      text.push_back(source[i]);
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(source) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t tag = find_tag();
      if (tag == std::string_view::npos) {
        add_data(text_.substr(at_));
        advance(text_.size());
        break;
      }
      read_tag(tag);
    }
    add(TokenType::kEnd);
    return std::move(tokens_);
  }

 private:
  size_t find_tag() const {
    for (size_t at = text_.find('{', at_); at != std::string_view::npos;
         at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() &&
          (text_[at + 1] == '%' || text_[at + 1] == '{' || text_[at + 1] == '#'))
        return at;
    }
    return std::string_view::npos;
  }

  Token& add(TokenType type) {
    Token& token = tokens_.emplace_back();
    token.type = type;
    token.line = line_;
    return token;
  }

  void add_data(std::string_view data) {
    if (!data.empty()) add(TokenType::kData).text = data;
  }

  // Moves to `to` and counts the lines in between.
  void advance(size_t to) {
    line_ +=
        static_cast<uint32_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_starting_ = to > 0 && to > at_ && text_[to - 1] == '\n';
    at_ = to;
  }

  [[noreturn]] void fail_here(std::string_view what) const { fail_at_line(line_, what); }

  char at(size_t position) const { return position < text_.size() ? text_[position] : '\0'; }

  size_t after_spaces(size_t position) const {
    return text_.size() - strip_spaces_left(text_.substr(position)).size();
  }

  // Returns the text before a tag without the white space that the tag removes.
  std::string_view before_tag(std::string_view data, char sign, bool is_variable) const {
    if (sign == '-') return strip_spaces_right(data);
    if (sign == '+' || is_variable) return data;
    const size_t newline = data.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return data;
    return strip_spaces_left(data.substr(line_start)).empty() ? data.substr(0, line_start) : data;
  }

  void read_tag(size_t tag) {
    const char kind = text_[tag + 1];
    size_t inside = tag + 2;
    const char sign = at(inside);
    if (sign == '-' || sign == '+') ++inside;
    const std::string_view data = before_tag(text_.substr(at_, tag - at_), sign, kind == '{');
    add_data(data);
    advance(tag);
    if (kind == '#') {
      skip_comment(tag + 2);
      return;
    }
    if (kind == '%' && try_read_raw(inside)) return;
    add(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin);
    advance(inside);
    read_expression(kind == '{');
  }

  void skip_comment(size_t inside) {
    const size_t end = text_.find("#}", inside);
    if (end == std::string_view::npos) fail_here("a comment is not closed");
    const char sign = end > inside ? text_[end - 1] : '\0';
    size_t after = end + 2;
    if (sign == '-')
      after = after_spaces(after);
    else if (sign != '+' && at(after) == '\n')
      ++after;
    advance(after);
  }

  // If `position` is before `word` and optional white space, returns where both end, else npos.
  size_t after_word(size_t position, std::string_view word) const {
    position = after_spaces(position);
    if (text_.substr(position, word.size()) != word) return std::string_view::npos;
    return after_spaces(position + word.size());
  }

  bool try_read_raw(size_t inside) {
    size_t begin = after_word(inside, "raw");
    if (begin == std::string_view::npos) return false;
    if (text_.substr(begin, 2) == "%}")
      begin += 2;
    else if (text_.substr(begin, 3) == "-%}")
      begin = after_spaces(begin + 3);
    else
      return false;
    for (size_t tag = text_.find("{%", begin); tag != std::string_view::npos;
         tag = text_.find("{%", tag + 1)) {
      const char sign = at(tag + 2);
      const size_t end = after_word(sign == '-' || sign == '+' ? tag + 3 : tag + 2, "endraw");
      if (end == std::string_view::npos) continue;
      size_t after = 0;
      if (text_.substr(end, 3) == "+%}")
        after = end + 3;
      else if (text_.substr(end, 3) == "-%}")
        after = after_spaces(end + 3);
      else if (text_.substr(end, 2) == "%}")
        after = at(end + 2) == '\n' ? end + 3 : end + 2;
      else
        continue;
      advance(begin);
      add_data(before_tag(text_.substr(begin, tag - begin), sign, false));
      advance(after);
      return true;
    }
    fail_here("a raw block is not closed");
  }

  bool try_read_end(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    size_t after = 0;
    if (text_.substr(at_, 2) == close) {
      after = at_ + 2;
      if (!is_variable && at(after) == '\n') ++after;
    } else if (at(at_) == '-' && text_.substr(at_ + 1, 2) == close) {
      after = after_spaces(at_ + 3);
    } else if (!is_variable && at(at_) == '+' && text_.substr(at_ + 1, 2) == close) {
      after = at_ + 3;
    } else {
      return false;
    }
    add(is_variable ? TokenType::kVariableEnd : TokenType::kBlockEnd);
    advance(after);
    return true;
  }

  void read_expression(bool is_variable) {
    std::string brackets;  // the closing brackets still expected
    while (true) {
      advance(after_spaces(at_));
      if (at_ >= text_.size()) fail_here(is_variable ? "'{{' is not closed" : "'{%' is not closed");
      if (brackets.empty() && try_read_end(is_variable)) return;
      const char c = text_[at_];
      if (is_digit(c)) {
        read_number();
      } else if (is_word_byte(c)) {
        read_name();
      } else if (c == '\'' || c == '"') {
        read_string(c);
      } else {
        read_operator(brackets);
      }
    }
  }

  // Skips digits, which may have single underscores between them.
  size_t after_digits(size_t position, bool (*is)(char)) const {
    while (is(at(position)) || (at(position) == '_' && is(at(position + 1)))) ++position;
    return position;
  }

  size_t after_float(size_t whole) const {
    size_t end = whole;
    if (at(end) == '.' && is_digit(at(end + 1))) end = after_digits(end + 1, is_digit);
    if (at(end) == 'e' || at(end) == 'E') {
      const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
      if (is_digit(at(end + 1 + sign))) end = after_digits(end + 1 + sign, is_digit);
    }
    return end;
  }

  void read_number() {
    const bool after_point = at_ > 0 && text_[at_ - 1] == '.';
    const size_t whole = after_digits(at_, is_digit);
    const size_t end = after_point ? whole : after_float(whole);
    if (end > whole) {
      const auto number = try_parse_float(text_.substr(at_, end - at_));
      if (!number) fail_here("a number cannot be read");
      add(TokenType::kFloat).number = *number;
      advance(end);
      return;
    }
    const size_t integer_end = after_integer(whole);
    const auto number = try_parse_int(text_.substr(at_, integer_end - at_), 0);
    if (!number) fail_here("an integer has more than 64 bits");
    add(TokenType::kInteger).integer = *number;
    advance(integer_end);
  }

  // Also accepts 0x1F, 0o17 and 0b11. Any other number that begins with 0 must be zero.
  size_t after_integer(size_t whole) const {
    if (text_[at_] != '0') return whole;
    const auto is_hex = [](char c) {
      return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    };
    const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
    const auto is_binary = [](char c) { return c == '0' || c == '1'; };
    const char letter = at(at_ + 1);
    const size_t first = at_ + (at(at_ + 2) == '_' ? 3 : 2);
    if ((letter == 'x' || letter == 'X') && is_hex(at(first))) return after_digits(first, is_hex);
    if ((letter == 'o' || letter == 'O') && is_octal(at(first)))
      return after_digits(first, is_octal);
    if ((letter == 'b' || letter == 'B') && is_binary(at(first)))
      return after_digits(first, is_binary);
    return after_digits(at_, [](char c) { return c == '0'; });
  }

  void read_name() {
    size_t end = at_;
    while (end < text_.size() && is_word_byte(text_[end])) {
      const Utf8Char c = decode_utf8(text_, end);
      const bool fits =
          c.code_point < 0x80 || (c.valid && (is_alpha(c.code_point) || is_numeric(c.code_point)));
      if (!fits) fail_here("a name has a character that names cannot have");
      end += c.bytes;
    }
    add(TokenType::kName).text = text_.substr(at_, end - at_);
    advance(end);
  }

  void read_string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail_here("a string is not closed");
    const auto value = try_unescape(text_.substr(at_ + 1, end - at_ - 1));
    if (!value) fail_here("a string has an escape that is not complete");
    add(TokenType::kString).text = *value;
    advance(end + 1);
  }

  void read_operator(std::string& brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (text_.substr(at_, op.size()) != op) continue;
      if (op == "(" || op == "[" || op == "{") {
        brackets.push_back(op[0] == '(' ? ')' : op[0] == '[' ? ']' : '}');
        if (brackets.size() > kMostBrackets) fail_here("brackets are nested too deeply");
      } else if (op == ")" || op == "]" || op == "}") {
        if (brackets.empty() || brackets.back() != op[0])
          fail_here(fmt::format("'{}' closes nothing", op));
        brackets.pop_back();
      }
      add(TokenType::kOperator).text = op;
      advance(at_ + op.size());
      return;
    }
    fail_here(fmt::format("'{}' is not part of any expression",
                          printable(text_.substr(at_, decode_utf8(text_, at_).bytes))));
  }

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = normalized(source);
  return Lexer(text).run();
}

void fail_at_line(uint32_t line, std::string_view what) {
  fail(ErrorCode::kInvalidArgument, "chat template, line {}: {}", line, what);
}

}  // namespace spillway::jinja
