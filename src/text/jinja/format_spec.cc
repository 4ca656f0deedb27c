// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/format_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "text/jinja/compare.h"
#include "text/jinja/number_text.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

constexpr int64_t kMostWidth = 1'000'000;
constexpr int64_t kMostPrecision = 1'000;

int64_t read_number(std::string_view& text, int64_t most) {
  int64_t number = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    number = std::min(number * 10 + (text[0] - '0'), most + 1);
    text.remove_prefix(1);
  }
  SPW_CHECK(number <= most, kInvalidArgument, "a format wants more than {} characters", most);
  return number;
}

std::string grouped(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string integer_digits(uint64_t magnitude, char type) {
  switch (type) {
    case 'b':
      return fmt::format("{:b}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string float_digits(double magnitude, const FormatSpec& spec) {
  if (std::isnan(magnitude)) return spec.type == 'F' || spec.type == 'E' ? "NAN" : "nan";
  if (std::isinf(magnitude)) return spec.type == 'F' || spec.type == 'E' ? "INF" : "inf";
  const int precision = static_cast<int>(spec.precision);
  const int usual = precision < 0 ? 6 : precision;
  switch (spec.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", magnitude, usual);
    case 'e':
      return fmt::format("{:.{}e}", magnitude, usual);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, usual);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, std::max(usual, 1));
    case 'G':
      return fmt::format("{:.{}G}", magnitude, std::max(usual, 1));
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, usual);
    default:
      break;
  }
  if (precision < 0) return float_text(magnitude);
  std::string digits = fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

// Appends a number: sign, prefix, digits and padding.
void append_number(TextBuilder& out, bool negative, const std::string& prefix, std::string digits,
                   const FormatSpec& spec) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  if (spec.grouping != 0)
    digits = grouped(digits.substr(0, whole), spec.grouping, prefix.empty() ? 3 : 4) +
             digits.substr(whole);
  std::string text = sign + prefix + digits;
  if (spec.align == '=') {
    const auto length = static_cast<int64_t>(text.size());
    out.append(sign + prefix, Origin::kTemplate);
    out.repeat(spec.fill, spec.width - length, Origin::kTemplate);
    out.append(digits, Origin::kTemplate);
    return;
  }
  append_padded(out, Text(text, Origin::kTemplate), spec, '>');
}

}  // namespace

FormatSpec parse_format_spec(std::string_view text) {
  FormatSpec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t first = decode_utf8(text, 0).bytes;
    if (text.size() > first && is_align(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view choices) {
    if (text.empty() || choices.find(text[0]) == std::string_view::npos) return '\0';
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = read_number(text, kMostWidth);
  spec.grouping = take(",_");
  if (take(".") != 0) {
    SPW_CHECK(!text.empty() && text[0] >= '0' && text[0] <= '9', kInvalidArgument,
              "a format has no precision after its point");
    spec.precision = read_number(text, kMostPrecision);
  }
  spec.type = take("sdboxXceEfFgGn%");
  SPW_CHECK(text.empty(), kInvalidArgument, "a format has something after its type");
  return spec;
}

void append_padded(TextBuilder& out, const Text& text, const FormatSpec& spec, char default_align) {
  const auto length = static_cast<int64_t>(count_characters(text.bytes()));
  const int64_t missing = std::max<int64_t>(0, spec.width - length);
  const char align = spec.align == 0 ? default_align : spec.align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  out.repeat(spec.fill, left, Origin::kTemplate);
  out.append(text);
  out.repeat(spec.fill, missing - left, Origin::kTemplate);
}

void append_formatted(Heap& heap, TextBuilder& out, const Value& value, const FormatSpec& spec) {
  const bool as_integer =
      value.is_integral() &&
      (spec.type == 0 || std::string_view("dboxXcn").find(spec.type) != std::string_view::npos);
  if (value.is_string()) {
    SPW_CHECK((spec.type == 0 || spec.type == 's') && spec.align != '=' && spec.sign == '-' &&
                  spec.grouping == 0,
              kInvalidArgument, "a string cannot be formatted as a number");
    Text text = str_of(heap, value);
    if (spec.precision >= 0)
      text = text.part(0, character_offset(text.bytes(), static_cast<size_t>(spec.precision)));
    append_padded(out, text, spec, '<');
    return;
  }
  if (as_integer) {
    SPW_CHECK(spec.precision < 0, kInvalidArgument, "a whole number is formatted with a precision");
    const int64_t number = value.integer();
    const uint64_t magnitude =
        number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    if (spec.type == 'c') {
      SPW_CHECK(number >= 0 && number <= 0x10FFFF && !(number >= 0xD800 && number <= 0xDFFF),
                kInvalidArgument, "{} is not a character", number);
      std::string character;
      append_utf8(character, static_cast<char32_t>(number));
      append_padded(out, Text(character, Origin::kInput), spec, '<');
      return;
    }
    const bool other_base = spec.type != 0 && spec.type != 'd' && spec.type != 'n';
    SPW_CHECK(!(other_base && spec.grouping == ','), kInvalidArgument,
              "',' groups decimal numbers only");
    std::string prefix;
    if (spec.alternate && other_base) prefix = {'0', spec.type};
    append_number(out, number < 0, prefix, integer_digits(magnitude, spec.type), spec);
    return;
  }
  SPW_CHECK(value.is_number() && spec.type != 's' && !(spec.type == 'd' || spec.type == 'c') &&
                std::string_view("boxX").find(spec.type) == std::string_view::npos,
            kInvalidArgument, "a value of type '{}' cannot be formatted like this",
            type_name(value));
  const double number = value.number();
  append_number(out, std::signbit(number) && !std::isnan(number), "",
                float_digits(std::fabs(number), spec), spec);
}

}  // namespace spillway::jinja
