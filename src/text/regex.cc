// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#include "base/error.h"
#include "base/printable.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace spillway {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
// Enough for a built-in pattern on any text, too little for an exponential one to take more than
// seconds.
constexpr uint32_t kMatchLimit = 200'000'000;
constexpr uint32_t kHeapLimitKiB = 256 * 1024;

// PCRE2's \s also has U+180E, its \w lacks marks, its \h is horizontal space.
constexpr std::string_view kSpaces =
    R"(\t-\r\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWords = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHexDigits = "0-9A-Fa-f";

// Letters and numbers of Unicode 15 and 16, which PCRE2 10.42 does not know yet.
constexpr std::string_view kLetters =
    R"(\p{L}\x{1c89}\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d65})"
    R"(\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e})"
    R"(\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10})"
    R"(\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d})"
    R"(\x{16d40}-\x{16d6c}\x{18cff}\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d})"
    R"(\x{1e4d0}-\x{1e4eb}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kNumbers =
    R"(\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3}\x{1e4f0}-\x{1e4f9})"
    R"(\x{1e5f1}-\x{1e5fa})";

// An escape whose set differs between the two, its length in the pattern, and the set.
struct Escape {
  size_t length = 0;  // 0: PCRE2 reads it alike
  bool negated = false;
  std::string_view set;
};

Escape escape_at(std::string_view rest) {
  constexpr Escape kEscapes[] = {
      {2, false, kSpaces},    {2, true, kSpaces},    {2, false, kWords},   {2, true, kWords},
      {2, false, kHexDigits}, {2, true, kHexDigits}, {5, false, kLetters}, {5, false, kNumbers}};
  constexpr std::string_view kNames[] = {"\\s", "\\S", "\\w",    "\\W",
                                         "\\h", "\\H", "\\p{L}", "\\p{N}"};
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (rest.starts_with(kNames[i])) return kEscapes[i];
  return {};
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
      const Escape escape = escape_at(pattern.substr(i));
      if (escape.length == 0 || (escape.negated && in_class)) {
        result.append({c, pattern[++i]});
        continue;
      }
      if (!in_class) result.append(escape.negated ? "[^" : "[");
      result.append(escape.set);
      if (!in_class) result.push_back(']');
      i += escape.length - 1;
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
      if (rest.starts_with("[:")) {  // a POSIX class: its ] does not end ours
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
  // Oniguruma's ^ and $ match at every line.
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
  // Without PCRE2_NO_UTF_CHECK every search would read the whole text: quadratic.
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const pcre2_code* code = regex_->code_->code;
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (regex_->code_->jit)
    result = pcre2_jit_match(code, subject, text.size(), start, kOptions, scratch_->data,
                             scratch_->context);
  // The interpreter keeps its state on the heap, so it can go on where JIT's 32 KiB stack ends.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = pcre2_match(code, subject, text.size(), start, kOptions | PCRE2_NO_JIT, scratch_->data,
                         scratch_->context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  SPW_CHECK(result >= 0, kUnsupported, "the tokenizer's pattern fails on this text: {}",
            pcre2_message(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch_->data);
  // \K could move the start past the end, or before where the search began.
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
