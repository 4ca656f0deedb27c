// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>

#include "base/error.h"
#include "text/jinja/arguments.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/number_text.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"
#include "text/jinja/string_case.h"
#include "text/jinja/string_cut.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

template <Value (*kConvert)(Heap&, const Text&)>
Value convert_case(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("this filter", arguments, {});
  return kConvert(heap, str_of(heap, input));
}

Value trim(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("trim", arguments, {"chars"});
  const Text text = str_of(heap, input);
  heap.charge_scan(text.size());
  if (given.value_or(0, Value()).is_none()) return heap.text(strip_whitespace(text, Side::kBoth));
  return heap.text(strip_characters(text, given.text(0).bytes(), Side::kBoth));
}

Value replace(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"});
  const int64_t most = given.value_or(2, Value()).is_none() ? -1 : given.integer(2);
  const Text old = str_of(heap, given.value(0));
  const Text by = str_of(heap, given.value(1));
  return replace_text(heap, str_of(heap, input).with_markup(false), old.bytes(), by, most);
}

Value join(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("join", arguments, {"d", "attribute"});
  const AttributePath path(heap, given.value_or(1, Value()));
  const Text separator = given.has(0) ? str_of(heap, given.value(0)) : Text();
  TextBuilder out(heap);
  bool first = true;
  for (const Value& item : items_of(heap, input)) {
    if (!first) out.append(separator);
    first = false;
    append_str(heap, out, path.of(item));
  }
  return out.take();
}

Value string(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("string", arguments, {});
  return to_str(heap, input);
}

Value safe(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("safe", arguments, {});
  return heap.text(str_of(heap, input).with_markup(true));
}

Value escape(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("escape", arguments, {});
  return heap.text(escape_html(heap, str_of(heap, input)));
}

Value force_escape(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("forceescape", arguments, {});
  return heap.text(escape_html(heap, str_of(heap, input).with_markup(false)));
}

const Text& string_input(const Value& input, std::string_view filter) {
  if (input.is_undefined()) fail_undefined(input);
  SPW_CHECK(input.is_string(), kInvalidArgument, "the filter {} wants a string, not '{}'", filter,
            type_name(input));
  return input.text();
}

Value indent(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("indent", arguments, {"width", "first", "blank"});
  const Value width = given.value_or(0, int64_t{4});
  const Text text = string_input(input, "indent");
  heap.charge_scan(text.size());
  Value indention = width;
  if (!width.is_string()) {
    TextBuilder spaces(heap);
    spaces.repeat(" ", given.integer_or(0, 4), Origin::kTemplate);
    indention = spaces.take();
  }
  const bool blank = given.flag_or(2, false);
  TextBuilder out(heap);
  if (given.flag_or(1, false)) out.append(indention.text());
  // An empty last line is added if the text ends with a line break, as Jinja does.
  std::vector<Text> lines = split_lines(text, false);
  const bool ends_line = [&] {
    if (text.empty()) return true;
    const std::vector<Text> kept = split_lines(text, true);
    return kept.back().size() != lines.back().size();
  }();
  if (ends_line) lines.emplace_back();
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", Origin::kTemplate);
      if (blank || !lines[i].empty()) out.append(indention.text());
    }
    out.append(lines[i]);
  }
  return out.take(text.is_markup());
}

Value truncate(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const int64_t length = given.integer_or(0, 255);
  const Text end = given.has(2) ? given.text(2) : Text("...", Origin::kTemplate);
  const int64_t leeway = given.value_or(3, Value()).is_none() ? 5 : given.integer(3);
  const auto end_length = static_cast<int64_t>(count_characters(end.bytes()));
  SPW_CHECK(length >= end_length && leeway >= 0, kInvalidArgument,
            "truncate wants a length of at least {}", end_length);
  if (length_of(heap, input) - leeway <= length) return input;
  const Text text = string_input(input, "truncate");
  Text kept =
      text.part(0, character_offset(text.bytes(), static_cast<size_t>(length - end_length)));
  if (!given.flag_or(1, false)) {
    const size_t space = kept.bytes().rfind(' ');
    if (space != std::string_view::npos) kept = kept.part(0, space);
  }
  TextBuilder out(heap);
  out.append(kept);
  out.append(end);
  return out.take();
}

Value center(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("center", arguments, {"width"});
  const Text text = str_of(heap, input);
  const int64_t width = given.integer_or(0, 80);
  const auto length = static_cast<int64_t>(count_characters(text.bytes()));
  const int64_t missing = std::max<int64_t>(0, width - length);
  const int64_t left = missing / 2 + (missing & width & 1);
  TextBuilder out(heap);
  out.repeat(" ", left, Origin::kTemplate);
  out.append(text);
  out.repeat(" ", missing - left, Origin::kTemplate);
  return out.take();
}

Value word_count(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("wordcount", arguments, {});
  const Text text = str_of(heap, input);
  heap.charge_scan(text.size());
  int64_t words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text.bytes(), at);
    at += c.bytes;
    const bool word =
        c.valid && (c.code_point == '_' || is_alpha(c.code_point) || is_numeric(c.code_point));
    if (word && !in_word) ++words;
    in_word = word;
  }
  return words;
}

void append_url_quoted(TextBuilder& out, const Text& text, bool in_query) {
  text.for_each_run([&](std::string_view run, Origin origin) {
    std::string quoted;
    for (const char c : run) {
      const bool plain =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
          std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !in_query);
      if (plain)
        quoted.push_back(c);
      else if (c == ' ' && in_query)
        quoted.push_back('+');
      else
        quoted += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    out.append(quoted, origin);
  });
}

Value url_encode(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("urlencode", arguments, {});
  TextBuilder out(heap);
  if (input.is_string() || !is_iterable(input)) {
    append_url_quoted(out, str_of(heap, input), false);
    return out.take();
  }
  std::vector<std::pair<Value, Value>> pairs;
  if (input.is(Kind::kDict)) {
    pairs = input.dict().items();
  } else {
    for (const Value& item : items_of(heap, input)) {
      const std::vector<Value> pair = items_of(heap, item);
      SPW_CHECK(pair.size() == 2, kInvalidArgument, "urlencode wants pairs");
      pairs.emplace_back(pair[0], pair[1]);
    }
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i > 0) out.append("&", Origin::kTemplate);
    append_url_quoted(out, str_of(heap, pairs[i].first), true);
    out.append("=", Origin::kTemplate);
    append_url_quoted(out, str_of(heap, pairs[i].second), true);
  }
  return out.take();
}

Value format(Heap& heap, const Value& input, const Arguments& arguments) {
  SPW_CHECK(arguments.positional.empty() || arguments.named.empty(), kInvalidArgument,
            "format takes either positional or named arguments");
  const Text pattern = str_of(heap, input);
  if (arguments.named.empty())
    return format_percent(heap, pattern, heap.tuple(arguments.positional));
  Dict named;
  for (const auto& [name, value] : arguments.named)
    named.set(heap.text(Text(name, Origin::kTemplate)), value);
  return format_percent(heap, pattern, heap.dict(std::move(named)));
}

Value xml_attributes(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("xmlattr", arguments, {"autospace"});
  SPW_CHECK(input.is(Kind::kDict), kInvalidArgument, "xmlattr wants a mapping");
  TextBuilder out(heap);
  bool first = true;
  for (const auto& [key, value] : input.dict().items()) {
    if (value.is_none() || value.is_undefined()) continue;
    SPW_CHECK(
        key.is_string() && key.bytes().find_first_of(" \t\n\r\f\v/>=") == std::string_view::npos,
        kInvalidArgument, "xmlattr has a name that no attribute can have");
    if (!first || given.flag_or(0, true)) out.append(" ", Origin::kTemplate);
    first = false;
    out.append(escape_html(heap, key.text()));
    out.append("=\"", Origin::kTemplate);
    out.append(escape_html(heap, str_of(heap, value)));
    out.append("\"", Origin::kTemplate);
  }
  return out.take();
}

// Returns the text of a separator that the template passed to tojson.
Text separator(const Value& value) {
  SPW_CHECK(value.is_string(), kInvalidArgument, "tojson wants strings as separators");
  return value.text();
}

Value tojson(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("tojson", arguments,
                         {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = given.flag_or(0, false);
  style.sort_keys = given.flag_or(3, false);
  const Value width = given.value_or(1, Value());
  if (width.is_string()) {
    style.indent = width.text();
  } else if (!width.is_none()) {
    TextBuilder spaces(heap);
    spaces.repeat(" ", given.integer(1), Origin::kInput);
    style.indent = spaces.take().text();
  }
  style.item_separator = Text(style.indent ? "," : ", ", Origin::kInput);
  style.key_separator = Text(": ", Origin::kInput);
  if (const Value pair = given.value_or(2, Value()); !pair.is_none()) {
    const std::vector<Value> both = items_of(heap, pair);
    SPW_CHECK(both.size() == 2, kInvalidArgument, "tojson wants two separators");
    style.item_separator = separator(both[0]);
    style.key_separator = separator(both[1]);
  }
  return to_json(heap, input, style);
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable kTable{
      {"capitalize", convert_case<to_capitalized>},
      {"center", center},
      {"e", escape},
      {"escape", escape},
      {"forceescape", force_escape},
      {"format", format},
      {"indent", indent},
      {"join", join},
      {"lower", convert_case<to_lower>},
      {"replace", replace},
      {"safe", safe},
      {"string", string},
      {"title", convert_case<to_title_words>},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", convert_case<to_upper>},
      {"urlencode", url_encode},
      {"wordcount", word_count},
      {"xmlattr", xml_attributes},
  };
  return kTable;
}

}  // namespace spillway::jinja
