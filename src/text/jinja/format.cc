// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/attribute.h"
#include "text/jinja/compare.h"
#include "text/jinja/find.h"
#include "text/jinja/format_spec.h"
#include "text/jinja/number_text.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

// Hands out the values right of a % in the order in which the pattern uses them.
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : values_(values) {
    is_tuple_ = values.is(Kind::kList) && values.list().sequence == Sequence::kTuple;
  }

  Value next() {
    if (!is_tuple_) {
      SPW_CHECK(used_ == 0, kInvalidArgument, "a pattern has more places than values");
      ++used_;
      return values_;
    }
    SPW_CHECK(used_ < values_.list().items.size(), kInvalidArgument,
              "a pattern has more places than values");
    return values_.list().items[used_++];
  }

  Value named(std::string_view name) {
    SPW_CHECK(values_.is(Kind::kDict), kInvalidArgument, "a pattern with names wants a mapping");
    by_name_ = true;
    const auto found = values_.dict().try_find(name);
    SPW_CHECK(found.has_value(), kInvalidArgument, "a pattern names a value that is not there");
    return *found;
  }

  void check_all_used() const {
    // In Python a single value that can hold several may stay unused.
    const bool may_stay =
        values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is_undefined() || by_name_;
    const bool rest = is_tuple_ ? used_ < values_.list().items.size() : used_ == 0 && !may_stay;
    SPW_CHECK(!rest, kInvalidArgument, "a pattern has fewer places than values");
  }

 private:
  const Value& values_;
  bool is_tuple_ = false;
  bool by_name_ = false;
  size_t used_ = 0;
};

int64_t whole_part(const Value& value) {
  if (value.is_integral()) return value.integer();
  SPW_CHECK(value.is(Kind::kFloat) && std::fabs(value.number()) < 9.2e18, kInvalidArgument,
            "%d wants a number, not '{}'", type_name(value));
  return static_cast<int64_t>(value.number());
}

void append_percent(Heap& heap, TextBuilder& out, char type, const Value& value, FormatSpec spec,
                    bool is_markup) {
  switch (type) {
    case 's':
    case 'r':
    case 'a': {
      TextBuilder text(heap);
      if (type == 's')
        append_str(heap, text, value);
      else
        append_repr(heap, text, value);
      Text shown = text.take(value.is_string() && value.text().is_markup()).text();
      if (is_markup) shown = escape_html(heap, shown);
      if (spec.precision >= 0)
        shown = shown.part(0, character_offset(shown.bytes(), static_cast<size_t>(spec.precision)));
      spec.fill = " ";
      append_padded(out, shown, spec, '>');
      return;
    }
    case 'd':
    case 'i':
    case 'u':
      spec.type = 'd';
      spec.precision = -1;
      append_formatted(heap, out, whole_part(value), spec);
      return;
    case 'x':
    case 'X':
    case 'o':
      SPW_CHECK(value.is_integral(), kInvalidArgument, "%{} wants a whole number, not '{}'", type,
                type_name(value));
      spec.type = type;
      spec.precision = -1;
      append_formatted(heap, out, Value(value.integer()), spec);
      return;
    case 'c':
      if (value.is_string()) {
        SPW_CHECK(count_characters(value.bytes()) == 1, kInvalidArgument, "%c wants one character");
        append_padded(out, value.text(), spec, '>');
        return;
      }
      SPW_CHECK(value.is_integral(), kInvalidArgument, "%c wants one character");
      spec.type = 'c';
      spec.align = spec.align == 0 || spec.align == '=' ? '>' : spec.align;
      append_formatted(heap, out, Value(value.integer()), spec);
      return;
    default:
      SPW_CHECK(std::string_view("eEfFgG").find(type) != std::string_view::npos, kInvalidArgument,
                "a pattern has an unknown place after %");
      SPW_CHECK(value.is_number(), kInvalidArgument, "%{} wants a number, not '{}'", type,
                type_name(value));
      spec.type = type;
      append_formatted(heap, out, Value(value.number()), spec);
  }
}

// Reads a number, or takes it from the values if there is a star; returns -1 if there is neither.
int64_t read_size(std::string_view bytes, size_t& at, PercentValues& values) {
  if (at < bytes.size() && bytes[at] == '*') {
    ++at;
    const Value size = values.next();
    SPW_CHECK(size.is_integral() && size.integer() >= -1'000'000 && size.integer() <= 1'000'000,
              kInvalidArgument, "* in a pattern wants a whole number");
    return size.integer();
  }
  if (at >= bytes.size() || bytes[at] < '0' || bytes[at] > '9') return -1;
  int64_t number = 0;
  while (at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9') {
    number = number * 10 + (bytes[at++] - '0');
    SPW_CHECK(number <= 1'000'000, kInvalidArgument, "a pattern wants too many characters");
  }
  return number;
}

// Formats replacement fields of str.format().
class BraceFields {
 public:
  BraceFields(Heap& heap, const Arguments& arguments) : heap_(heap), arguments_(arguments) {}

  void append_field(TextBuilder& out, const Text& field, int depth) {
    SPW_CHECK(depth < 2, kInvalidArgument, "a pattern has fields nested too deeply");
    const std::string_view bytes = field.bytes();
    size_t colon = 0;  // the first one that is not in brackets
    for (int brackets = 0; colon < bytes.size(); ++colon) {
      if (bytes[colon] == '[') ++brackets;
      if (bytes[colon] == ']') --brackets;
      if (brackets <= 0 && (bytes[colon] == ':' || bytes[colon] == '!')) break;
    }
    Value value = find(bytes.substr(0, colon));
    size_t spec_at = colon;
    if (colon < bytes.size() && bytes[colon] == '!') {
      SPW_CHECK(colon + 1 < bytes.size(), kInvalidArgument, "a pattern ends in '!'");
      value = converted(value, bytes[colon + 1]);
      spec_at = colon + 2;
      SPW_CHECK(spec_at >= bytes.size() || bytes[spec_at] == ':', kInvalidArgument,
                "a pattern wants ':' after its conversion");
    }
    if (spec_at >= bytes.size() || spec_at + 1 == bytes.size()) {
      append_str(heap_, out, value);
      return;
    }
    TextBuilder spec(heap_);
    append_pattern(spec, field.part(spec_at + 1), depth + 1);
    append_formatted(heap_, out, value, parse_format_spec(spec.take().bytes()));
  }

  void append_pattern(TextBuilder& out, const Text& pattern, int depth) {
    const std::string_view bytes = pattern.bytes();
    size_t done = 0;
    while (done < bytes.size()) {
      const size_t at = std::min(bytes.find_first_of("{}", done), bytes.size());
      out.append(pattern.part(done, at - done));
      if (at == bytes.size()) return;
      heap_.charge_steps(1);
      if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
        out.append(pattern.part(at, 1));
        done = at + 2;
        continue;
      }
      SPW_CHECK(bytes[at] == '{', kInvalidArgument, "a pattern has a single '}}'");
      const size_t end = end_of_field(bytes, at + 1);
      append_field(out, pattern.part(at + 1, end - at - 1), depth);
      done = end + 1;
    }
  }

 private:
  static size_t end_of_field(std::string_view bytes, size_t at) {
    for (int open = 1; at < bytes.size(); ++at) {
      if (bytes[at] == '{') ++open;
      if (bytes[at] == '}' && --open == 0) return at;
    }
    fail(ErrorCode::kInvalidArgument, "a pattern has a field without its closing brace");
  }

  Value find(std::string_view path) {
    const size_t name_end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, name_end));
    path.remove_prefix(name_end);
    while (!path.empty()) {
      const bool item = path[0] == '[';
      path.remove_prefix(1);
      const size_t end = std::min(path.find_first_of(item ? "]" : ".["), path.size());
      const std::string_view name = path.substr(0, end);
      SPW_CHECK(!name.empty() && (!item || end < path.size()), kInvalidArgument,
                "a pattern names an empty attribute");
      value = item ? element(value, name) : get_attribute(heap_, value, name);
      if (value.is_undefined()) fail_undefined(value);
      path.remove_prefix(item ? end + 1 : end);
    }
    return value;
  }

  Value element(const Value& value, std::string_view name) {
    const auto number = try_parse_int(name);
    return get_item(heap_, value,
                    number ? Value(*number) : heap_.text(Text(name, Origin::kTemplate)));
  }

  Value argument(std::string_view name) {
    if (name.empty()) return positional(next_++);
    if (const auto number = try_parse_int(name)) return positional(*number);
    for (const auto& [known, value] : arguments_.named)
      if (known == name) return value;
    fail(ErrorCode::kInvalidArgument, "a pattern names an argument that is not there");
  }

  Value positional(int64_t index) const {
    SPW_CHECK(index >= 0 && index < static_cast<int64_t>(arguments_.positional.size()),
              kInvalidArgument, "a pattern has more fields than arguments");
    return arguments_.positional[static_cast<size_t>(index)];
  }

  Value converted(const Value& value, char conversion) {
    TextBuilder text(heap_);
    SPW_CHECK(conversion == 's' || conversion == 'r' || conversion == 'a', kInvalidArgument,
              "a pattern has an unknown conversion after '!'");
    if (conversion == 's')
      append_str(heap_, text, value);
    else
      append_repr(heap_, text, value);
    return text.take();
  }

  Heap& heap_;
  const Arguments& arguments_;
  int64_t next_ = 0;
};

}  // namespace

Value format_percent(Heap& heap, const Text& pattern, const Value& values) {
  const std::string_view bytes = pattern.bytes();
  PercentValues given(values);
  TextBuilder out(heap);
  size_t done = 0;
  while (done < bytes.size()) {
    size_t at = std::min(bytes.find('%', done), bytes.size());
    out.append(pattern.part(done, at - done));
    if (at == bytes.size()) break;
    heap.charge_steps(1);
    ++at;
    std::optional<Value> named;
    if (at < bytes.size() && bytes[at] == '(') {
      const size_t end = bytes.find(')', at);
      SPW_CHECK(end != std::string_view::npos, kInvalidArgument, "a pattern has '(' without ')'");
      named = given.named(bytes.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    FormatSpec spec;
    for (; at < bytes.size() && std::string_view("-+ #0").find(bytes[at]) != std::string_view::npos;
         ++at) {
      if (bytes[at] == '-') spec.align = '<';
      if (bytes[at] == '+') spec.sign = '+';
      if (bytes[at] == ' ' && spec.sign != '+') spec.sign = ' ';
      if (bytes[at] == '#') spec.alternate = true;
      if (bytes[at] == '0') spec.fill = "0";
    }
    if (spec.align == '<')
      spec.fill = " ";
    else if (spec.fill == "0")
      spec.align = '=';
    const int64_t width = read_size(bytes, at, given);
    if (width < -1) spec.align = '<';
    spec.width = width == -1 ? 0 : std::abs(width);
    if (at < bytes.size() && bytes[at] == '.') {
      ++at;
      spec.precision = std::max<int64_t>(0, read_size(bytes, at, given));
      SPW_CHECK(spec.precision <= 1000, kInvalidArgument, "a pattern wants too many digits");
    }
    while (at < bytes.size() && (bytes[at] == 'h' || bytes[at] == 'l' || bytes[at] == 'L')) ++at;
    SPW_CHECK(at < bytes.size(), kInvalidArgument, "a pattern ends after %");
    const char type = bytes[at];
    done = at + 1;
    if (type == '%') {
      out.append(pattern.part(at, 1));
      continue;
    }
    const Value value = named ? *named : given.next();
    if (type == 's' && spec.align == '=') spec.align = '>';
    append_percent(heap, out, type, value, spec, pattern.is_markup());
  }
  given.check_all_used();
  return out.take(pattern.is_markup());
}

Value format_braces(Heap& heap, const Text& pattern, const Arguments& arguments) {
  TextBuilder out(heap);
  BraceFields(heap, arguments).append_pattern(out, pattern, 0);
  return out.take(pattern.is_markup());
}

}  // namespace spillway::jinja
