// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#include <array>

#include "base/error.h"
#include "base/printable.h"
#include "text/unicode_sets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace spillway {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
// Allows every built-in pattern on any text, but stops an exponential pattern within seconds.
constexpr uint32_t kMatchLimit = 200'000'000;
constexpr uint32_t kHeapLimitKiB = 256 * 1024;

using namespace unicode_sets;

// A set that Oniguruma and PCRE2 read differently: the inside of a character class, in parts.
using Set = std::array<std::string_view, 8>;

constexpr Set kLetters = {R"(\p{L})", kNewLettersUpper, kNewLettersLower, kNewLettersModifier,
                          kNewLettersOther};
constexpr Set kWords = {R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})",
                        kNewLettersUpper,
                        kNewLettersLower,
                        kNewLettersModifier,
                        kNewLettersOther,
                        kNewMarks,
                        kNewDecimals,
                        kMoreOfWords};

struct Escape {
  std::string_view text;  // in the pattern
  Set set = {};
  bool negated = false;
};

constexpr Escape kEscapes[] = {
    {R"(\s)", {kSpaces}},
    {R"(\S)", {kSpaces}, true},
    {R"(\w)", kWords},
    {R"(\W)", kWords, true},
    {R"(\h)", {"0-9A-Fa-f"}},  // PCRE2's \h is horizontal space
    {R"(\H)", {"0-9A-Fa-f"}, true},
    {R"(\d)", {R"(\p{Nd})", kNewDecimals}},
    {R"(\D)", {R"(\p{Nd})", kNewDecimals}, true},
    {R"(\p{L})", kLetters},
    {R"(\P{L})", kLetters, true},
    {R"(\p{Lu})", {R"(\p{Lu})", kNewLettersUpper}},
    {R"(\p{Ll})", {R"(\p{Ll})", kNewLettersLower}},
    {R"(\p{Lm})", {R"(\p{Lm})", kNewLettersModifier}},
    {R"(\p{Lo})", {R"(\p{Lo})", kNewLettersOther}},
    {R"(\p{M})", {R"(\p{M})", kNewMarks}},
    {R"(\p{N})", {R"(\p{N})", kNewNumbers}},
    {R"(\P{N})", {R"(\p{N})", kNewNumbers}, true},
    {R"(\p{Nd})", {R"(\p{Nd})", kNewDecimals}},
    {R"(\p{P})", {R"(\p{P})", kNewPunctuation}},
    {R"(\p{S})", {R"(\p{S})", kNewSymbols}},
};

// Returns the escape that `rest` begins with, or nullptr if PCRE2 reads it as Oniguruma does.
const Escape* try_escape(std::string_view rest) {
  for (const Escape& escape : kEscapes) {
    if (rest.starts_with(escape.text)) return &escape;
  }
  return nullptr;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

std::string translate_oniguruma(std::string_view pattern) {
  std::string result;
  bool in_class = false;
  size_t class_start = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const Escape* escape = try_escape(pattern.substr(i));
      if (escape == nullptr || (escape->negated && in_class)) {
        result.append({c, pattern[++i]});
        continue;
      }
      if (!in_class) result.append(escape->negated ? "[^" : "[");
      for (const std::string_view part : escape->set) result.append(part);
      if (!in_class) result.push_back(']');
      i += escape->text.size() - 1;
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_start = i + 1;
      if (class_start < pattern.size() && pattern[class_start] == '^') ++class_start;
    } else if (in_class && c == ']' && i > class_start) {
      in_class = false;
    } else if (in_class) {
      const std::string_view rest = pattern.substr(i);
      SPW_CHECK(!rest.starts_with("&&") && (c != '[' || rest.starts_with("[:")), kUnsupported,
                "pattern '{}': set operations inside a character class are not supported",
                printable(pattern));
      if (rest.starts_with("[:")) {  // a POSIX class: its ] does not end the outer class
        const size_t close = rest.find(":]");
        if (close != std::string_view::npos) {
          result.append(rest.substr(0, close + 2));
          i += close + 1;
          continue;
        }
      }
    }
    result.push_back(c);
  }
  return result;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  SPW_CHECK(pattern.size() <= kMaxPatternBytes, kUnsupported,
            "a pattern of {} bytes is too long (limit {})", pattern.size(), kMaxPatternBytes);
  const std::string translated = translate_oniguruma(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // PCRE2_MULTILINE is set because Oniguruma's ^ and $ match at every line.
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, nullptr);
  SPW_CHECK(code_->code != nullptr, kUnsupported, "pattern '{}': {}", printable(pattern),
            pcre2_message(error));
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct RegexSearch::Scratch {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

RegexSearch::RegexSearch(const Regex& regex)
    : regex_(&regex), scratch_(std::make_unique<Scratch>()) {
  scratch_->data = pcre2_match_data_create(1, nullptr);
  scratch_->context = pcre2_match_context_create(nullptr);
  SPW_CHECK(scratch_->data != nullptr && scratch_->context != nullptr, kOutOfMemory,
            "no memory for matching a regular expression");
  pcre2_set_match_limit(scratch_->context, kMatchLimit);
  pcre2_set_heap_limit(scratch_->context, kHeapLimitKiB);
}

RegexSearch::~RegexSearch() = default;
RegexSearch::RegexSearch(RegexSearch&&) noexcept = default;

std::optional<RegexMatch> RegexSearch::try_find(std::string_view text, size_t start) {
  // Without PCRE2_NO_UTF_CHECK every search would validate the whole text, which is quadratic.
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const pcre2_code* code = regex_->code_->code;
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (regex_->code_->jit)
    result = pcre2_jit_match(code, subject, text.size(), start, kOptions, scratch_->data,
                             scratch_->context);
  // If JIT's 32 KiB stack is too small, the interpreter goes on: it keeps its state on the heap.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = pcre2_match(code, subject, text.size(), start, kOptions | PCRE2_NO_JIT, scratch_->data,
                         scratch_->context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  SPW_CHECK(result >= 0, kUnsupported, "the tokenizer's pattern fails on this text: {}",
            pcre2_message(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch_->data);
  // \K could move the start of a match past its end, or before the start of the search.
  SPW_CHECK(ends[0] >= start && ends[0] < ends[1], kUnsupported,
            "the tokenizer's pattern gives a match that starts after its end");
  return RegexMatch{.begin = ends[0], .end = ends[1]};
}

void split_by_matches(RegexSearch& search, std::string_view text,
                      std::vector<std::string_view>& pieces) {
  size_t position = 0;
  while (position < text.size()) {
    const auto match = search.try_find(text, position);
    const size_t begin = match ? match->begin : text.size();
    if (begin > position) pieces.push_back(text.substr(position, begin - position));
    if (!match) break;
    pieces.push_back(text.substr(begin, match->end - begin));
    position = match->end;
  }
}

}  // namespace spillway
