// SPDX-License-Identifier: Apache-2.0
// Turns token ids into text one at a time, without ever returning part of a character.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace spillway {

// Keeps a reference to the tokenizer. Make one for each stream; it is not thread-safe. The
// concatenated results of push() and flush() equal decode() of the same ids with the same options,
// with U+FFFD in place of bytes that are not valid UTF-8.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, DecodeOptions options = {});

  // Returns the text that is complete with this token. Bytes that may be the start of a character
  // are kept for the next call.
  std::string push(TokenId id);
  // Returns U+FFFD for bytes that are still kept, and resets the stream.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  bool at_start_ = true;
  std::string pending_;  // at most 3 bytes between calls
};

}  // namespace spillway
