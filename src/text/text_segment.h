// SPDX-License-Identifier: Apache-2.0
// A part of a text, with whether control tokens are recognized in it.
#pragma once

#include <string>

namespace spillway {

// Markers come from a template, so control tokens in them are meant. Everything else comes from a
// user, and "<|im_end|>" in it is just text.
struct TextSegment {
  std::string text;
  bool is_marker = false;
};

}  // namespace spillway
