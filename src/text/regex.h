// SPDX-License-Identifier: Apache-2.0
// Runs the regular expressions of tokenizer files (Oniguruma's dialect) with PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct RegexMatch {
  size_t begin = 0;
  size_t end = 0;
};

// A compiled pattern. Immutable and thread-safe; each thread searches with a RegexSearch of its
// own. The constructor throws Error(kUnsupported) for a pattern that PCRE2 cannot compile or would
// read differently.
class Regex {
 public:
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

 private:
  friend class RegexSearch;
  struct Code;
  std::unique_ptr<Code> code_;
};

// Holds the scratch memory for searches with one Regex, which must outlive it. One thread at a time
// may use it.
class RegexSearch {
 public:
  explicit RegexSearch(const Regex& regex);
  ~RegexSearch();
  RegexSearch(RegexSearch&&) noexcept;
  RegexSearch& operator=(RegexSearch&&) = delete;

  // Returns the leftmost match that is not empty and starts at `start` or later. `text` must be
  // valid UTF-8, and a character must begin at `start`. Throws Error(kUnsupported) if the pattern
  // needs too many steps on this text.
  [[nodiscard]] std::optional<RegexMatch> try_find(std::string_view text, size_t start);

 private:
  struct Scratch;
  const Regex* regex_;
  std::unique_ptr<Scratch> scratch_;
};

// Splits `text` (valid UTF-8) into the matches and the text between them, and appends these to
// `pieces`.
void split_by_matches(RegexSearch& search, std::string_view text,
                      std::vector<std::string_view>& pieces);

// Rewrites a pattern so that PCRE2 matches what Oniguruma would: Oniguruma's \s, \w and \h are
// other sets than PCRE2's, and its categories come from a newer Unicode version. Exposed for tests.
std::string translate_oniguruma(std::string_view pattern);

}  // namespace spillway
