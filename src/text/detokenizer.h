// SPDX-License-Identifier: Apache-2.0
// Token ids to text one at a time, without ever showing half a character.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace spillway {

// Keeps a reference to the tokenizer. One per stream, not thread-safe. What push() and flush()
// return, put together, is decode() of the same ids with the same options, with U+FFFD for what is
// not valid UTF-8.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, DecodeOptions options = {});

  // The text that is complete now; bytes that may be the start of a character wait for the next
  // token.
  std::string push(TokenId id);
  // What still waits, as U+FFFD; the stream can then start anew.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  bool at_start_ = true;
  std::string pending_;  // at most 3 bytes between calls
};

}  // namespace spillway
