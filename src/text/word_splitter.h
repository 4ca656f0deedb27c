// SPDX-License-Identifier: Apache-2.0
// Splits text into words; byte-level BPE merges only within a word.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "text/pre_split.h"
#include "text/regex.h"

namespace spillway {

// Holds the compiled stages. Immutable and thread-safe; each thread splits with a WordSplit of its
// own. The constructor throws Error(kUnsupported) for a pattern that cannot be run.
class WordSplitter {
 public:
  explicit WordSplitter(std::span<const SplitStage> stages);

 private:
  friend class WordSplit;
  struct Stage {
    Regex regex;
    bool on_bytes;
  };
  std::vector<Stage> stages_;
};

// Holds one thread's scratch memory for a WordSplitter, which must outlive it.
class WordSplit {
 public:
  explicit WordSplit(const WordSplitter& splitter);

  // Returns the words of `text` (valid UTF-8), which cover it in order. They are valid until the
  // next call. A stage with on_bytes matches letters that stand for single bytes
  // (text/byte_alphabet.h), so it may split inside a character.
  std::span<const std::string_view> split(std::string_view text);

 private:
  const WordSplitter& splitter_;
  std::vector<RegexSearch> searches_;
  std::vector<std::string_view> words_;
  std::vector<std::string_view> next_;
};

}  // namespace spillway
