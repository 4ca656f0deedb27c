// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include "text/utf8.h"

namespace spillway {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, DecodeOptions options)
    : tokenizer_(tokenizer), options_(options) {}

std::string IncrementalDetokenizer::push(TokenId id) {
  const TokenId ids[] = {id};
  std::string bytes =
      tokenizer_.decode(ids, {.keep_special = options_.keep_special, .continues = true});
  if (bytes.empty()) return {};
  if (at_start_ && !options_.continues && tokenizer_.strips_leading_space() &&
      bytes.starts_with(' '))
    bytes.erase(0, 1);
  at_start_ = false;
  pending_.append(bytes);
  const size_t complete = pending_.size() - truncated_utf8_suffix_bytes(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  at_start_ = true;
  return text;
}

}  // namespace spillway
