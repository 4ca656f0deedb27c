// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "text/jinja/arguments.h"
#include "text/jinja/attribute.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/find.h"
#include "text/jinja/format.h"
#include "text/jinja/sequence.h"
#include "text/jinja/string_case.h"
#include "text/jinja/string_cut.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

template <Side kSide>
Value strip(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("strip()", arguments, {"chars"});
  if (given.value_or(0, Value()).is_none()) return heap.text(strip_whitespace(self, kSide));
  return heap.text(strip_characters(self, given.text(0).bytes(), kSide));
}

Value list_of(Heap& heap, const std::vector<Text>& texts, Sequence sequence = Sequence::kList) {
  heap.charge_steps(texts.size());
  std::vector<Value> items;
  items.reserve(texts.size());
  for (const Text& text : texts) items.push_back(heap.text(text));
  return heap.list(std::move(items), sequence);
}

template <bool kFromRight>
Value split(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("split()", arguments, {"sep", "maxsplit"});
  const int64_t most = given.integer_or(1, -1);
  if (given.value_or(0, Value()).is_none())
    return list_of(heap, split_at_whitespace(self, most, kFromRight));
  const Text& separator = given.text(0);
  SPW_CHECK(!separator.empty(), kInvalidArgument, "split() wants a separator that is not empty");
  return list_of(heap, split_at(self, separator.bytes(), most, kFromRight));
}

Value splitlines(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("splitlines()", arguments, {"keepends"});
  return list_of(heap, split_lines(self, given.flag_or(0, false)));
}

template <bool kLast>
Value partition(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("partition()", arguments, {"sep"});
  const Text& separator = given.text(0);
  SPW_CHECK(!separator.empty(), kInvalidArgument,
            "partition() wants a separator that is not empty");
  const auto at = kLast ? find_last_bytes(self.bytes(), separator.bytes())
                        : find_bytes(self.bytes(), separator.bytes());
  const Text nothing = Text().with_markup(self.is_markup());
  if (!at && kLast) return list_of(heap, {nothing, nothing, self}, Sequence::kTuple);
  if (!at) return list_of(heap, {self, nothing, nothing}, Sequence::kTuple);
  return list_of(
      heap,
      {self.part(0, *at), self.part(*at, separator.size()), self.part(*at + separator.size())},
      Sequence::kTuple);
}

// The part of a string that a search covers, as its arguments start and end say.
struct Stretch {
  std::string_view bytes;
  int64_t start = 0;  // in characters
  bool exists = true;
};

Stretch stretch(const Text& self, const Parameters& given) {
  const auto length = static_cast<int64_t>(count_characters(self.bytes()));
  const auto placed = [&](size_t index, int64_t otherwise) {
    if (given.value_or(index, Value()).is_none()) return otherwise;
    const int64_t at = given.integer(index);
    return at < 0 ? std::max<int64_t>(0, at < -length ? 0 : at + length) : at;
  };
  const int64_t start = placed(1, 0);
  const int64_t stop = std::min(placed(2, length), length);
  if (start > length || start > stop) return {.bytes = {}, .start = start, .exists = false};
  const size_t begin = character_offset(self.bytes(), static_cast<size_t>(start));
  const size_t size =
      character_offset(self.bytes().substr(begin), static_cast<size_t>(stop - start));
  return {.bytes = self.bytes().substr(begin, size), .start = start, .exists = true};
}

template <bool kLast, bool kThrows>
Value find(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given("find()", arguments, {"sub", "start", "end"});
  const Stretch in = stretch(self, given);
  const std::string_view what = given.text(0).bytes();
  std::optional<size_t> at;
  if (in.exists) at = kLast ? find_last_bytes(in.bytes, what) : find_bytes(in.bytes, what);
  SPW_CHECK(at || !kThrows, kInvalidArgument, "index() does not find the text");
  if (!at) return int64_t{-1};
  return in.start + static_cast<int64_t>(count_characters(in.bytes.substr(0, *at)));
}

Value count(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given("count()", arguments, {"sub", "start", "end"});
  const Stretch in = stretch(self, given);
  const std::string_view what = given.text(0).bytes();
  if (!in.exists) return int64_t{0};
  if (what.empty()) return static_cast<int64_t>(count_characters(in.bytes)) + 1;
  int64_t times = 0;
  for (auto at = find_bytes(in.bytes, what); at; at = find_bytes(in.bytes, what, *at + what.size()))
    ++times;
  return times;
}

template <bool kAtEnd>
Value has_affix(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given(kAtEnd ? "endswith()" : "startswith()", arguments,
                         {"prefix", "start", "end"});
  const Stretch in = stretch(self, given);
  const auto fits = [&](std::string_view affix) {
    return in.exists && (kAtEnd ? in.bytes.ends_with(affix) : in.bytes.starts_with(affix));
  };
  const Value& affix = given.value(0);
  if (!affix.is(Kind::kList) || affix.list().sequence != Sequence::kTuple)
    return fits(given.text(0).bytes());
  for (const Value& each : affix.list().items) {
    SPW_CHECK(each.is_string(), kInvalidArgument, "startswith() wants strings, not '{}'",
              type_name(each));
    if (fits(each.bytes())) return true;
  }
  return false;
}

template <bool kAtEnd>
Value remove_affix(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given(kAtEnd ? "removesuffix()" : "removeprefix()", arguments, {"affix"});
  const std::string_view affix = given.text(0).bytes();
  if (kAtEnd && self.bytes().ends_with(affix))
    return heap.text(self.part(0, self.size() - affix.size()));
  if (!kAtEnd && self.bytes().starts_with(affix)) return heap.text(self.part(affix.size()));
  return heap.text(self);
}

Value replace(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("replace()", arguments, {"old", "new", "count"});
  return replace_text(heap, self, given.text(0).bytes(), given.text(1), given.integer_or(2, -1));
}

template <Value (*kConvert)(Heap&, const Text&)>
Value convert_case(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("this method", arguments, {});
  return kConvert(heap, self);
}

Value join(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("join()", arguments, {"iterable"});
  std::vector<Text> texts;
  for (const Value& item : items_of(heap, given.value(0))) {
    SPW_CHECK(item.is_string(), kInvalidArgument, "join() wants strings, not '{}'",
              type_name(item));
    texts.push_back(item.text());
  }
  return join_texts(heap, self, texts);
}

template <Side kSide>
Value justify(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("this method", arguments, {"width", "fillchar"});
  const auto length = static_cast<int64_t>(count_characters(self.bytes()));
  const int64_t width = given.integer(0);
  const Text fill = given.has(1) ? given.text(1) : Text(" ", Origin::kTemplate);
  SPW_CHECK(count_characters(fill.bytes()) == 1, kInvalidArgument,
            "a text is filled up with exactly one character");
  if (width <= length) return heap.text(self);
  const int64_t missing = width - length;
  // If the missing number is odd, Python puts the extra character on the left for odd widths.
  const int64_t left = kSide == Side::kLeft    ? 0
                       : kSide == Side::kRight ? missing
                                               : missing / 2 + (missing & width & 1);
  TextBuilder out(heap);
  out.repeat(fill.bytes(), left, fill.first_origin());
  out.append(self);
  out.repeat(fill.bytes(), missing - left, fill.first_origin());
  return out.take(self.is_markup());
}

Value zfill(Heap& heap, const Text& self, const Arguments& arguments) {
  const Parameters given("zfill()", arguments, {"width"});
  const auto length = static_cast<int64_t>(count_characters(self.bytes()));
  if (given.integer(0) <= length) return heap.text(self);
  const size_t sign = self.bytes().starts_with("-") || self.bytes().starts_with("+") ? 1 : 0;
  TextBuilder out(heap);
  out.append(self.part(0, sign));
  out.repeat("0", given.integer(0) - length, Origin::kTemplate);
  out.append(self.part(sign));
  return out.take(self.is_markup());
}

template <bool (*kTest)(char32_t)>
Value all_are(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given("this method", arguments, {});
  const std::string_view bytes = self.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, at);
    if (!c.valid || !kTest(c.code_point)) return false;
    at += c.bytes;
  }
  return !bytes.empty();
}

bool is_alphanumeric(char32_t c) {
  return is_alpha(c) || is_decimal(c) || is_digit_like(c) || is_numeric(c);
}

// Whether the text has characters of this case and none of the other.
template <bool kUpper>
Value has_case(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given("this method", arguments, {});
  const std::string_view bytes = self.bytes();
  bool found = false;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, at);
    at += c.bytes;
    if (!c.valid) continue;
    if (is_title(c.code_point) || (kUpper ? is_lower(c.code_point) : is_upper(c.code_point)))
      return false;
    found = found || (kUpper ? is_upper(c.code_point) : is_lower(c.code_point));
  }
  return found;
}

Value isascii(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given("isascii()", arguments, {});
  return std::all_of(self.bytes().begin(), self.bytes().end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

Value istitle(Heap&, const Text& self, const Arguments& arguments) {
  const Parameters given("istitle()", arguments, {});
  const std::string_view bytes = self.bytes();
  bool found = false;
  bool in_word = false;
  for (size_t at = 0; at < bytes.size();) {
    const char32_t c = decode_utf8(bytes, at).code_point;
    at += decode_utf8(bytes, at).bytes;
    const bool begins = is_upper(c) || is_title(c);
    if (begins ? in_word : is_lower(c) && !in_word) return false;
    in_word = begins || is_lower(c);
    found = found || in_word;
  }
  return found;
}

Value format(Heap& heap, const Text& self, const Arguments& arguments) {
  return format_braces(heap, self, arguments);
}

}  // namespace

StringMethod find_string_method(std::string_view name) {
  static const std::unordered_map<std::string_view, StringMethod> kMethods{
      {"capitalize", convert_case<to_capitalized>},
      {"casefold", convert_case<to_lower>},
      {"center", justify<Side::kBoth>},
      {"count", count},
      {"endswith", has_affix<true>},
      {"find", find<false, false>},
      {"format", format},
      {"index", find<false, true>},
      {"isalnum", all_are<is_alphanumeric>},
      {"isalpha", all_are<is_alpha>},
      {"isascii", isascii},
      {"isdecimal", all_are<is_decimal>},
      {"isdigit", all_are<is_digit_like>},
      {"islower", has_case<false>},
      {"isnumeric", all_are<is_numeric>},
      {"isspace", all_are<is_space>},
      {"istitle", istitle},
      {"isupper", has_case<true>},
      {"join", join},
      {"ljust", justify<Side::kLeft>},
      {"lower", convert_case<to_lower>},
      {"lstrip", strip<Side::kLeft>},
      {"partition", partition<false>},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"replace", replace},
      {"rfind", find<true, false>},
      {"rindex", find<true, true>},
      {"rjust", justify<Side::kRight>},
      {"rpartition", partition<true>},
      {"rsplit", split<true>},
      {"rstrip", strip<Side::kRight>},
      {"split", split<false>},
      {"splitlines", splitlines},
      {"startswith", has_affix<false>},
      {"strip", strip<Side::kBoth>},
      {"swapcase", convert_case<to_swapped_case>},
      {"title", convert_case<to_title>},
      {"upper", convert_case<to_upper>},
      {"zfill", zfill},
  };
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace spillway::jinja
