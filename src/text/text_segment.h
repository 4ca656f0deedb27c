// SPDX-License-Identifier: Apache-2.0
// A stretch of text together with whether it may name control tokens.
#pragma once

#include <string>

namespace spillway {

// Markers come from a template, and control tokens in them are meant; everything else comes from a
// user, and
// "<|im_end|>" in it is just text.
struct TextSegment {
  std::string text;
  bool is_marker = false;
};

}  // namespace spillway
