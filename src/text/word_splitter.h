// SPDX-License-Identifier: Apache-2.0
// Cuts text into the words that byte-level BPE merges in.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "text/pre_split.h"
#include "text/regex.h"

namespace spillway {

// The compiled stages. Immutable and thread-safe; each thread cuts with a WordSplit of its own. The
// constructor throws Error(kUnsupported) for a pattern that cannot be run.
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

// The scratch memory of one thread for a WordSplitter, which must outlive it.
class WordSplit {
 public:
  explicit WordSplit(const WordSplitter& splitter);

  // The words of `text` (valid UTF-8), which lie in it one after the other; they end where the next
  // call begins. A stage on bytes may cut inside a character.
  std::span<const std::string_view> split(std::string_view text);

 private:
  const WordSplitter& splitter_;
  std::vector<RegexSearch> searches_;
  std::vector<std::string_view> words_;
  std::vector<std::string_view> next_;
};

}  // namespace spillway
