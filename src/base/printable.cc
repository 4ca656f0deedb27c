// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <fmt/core.h>

#include <cstdint>

namespace spillway {
namespace {

// Returns the length of the valid UTF-8 sequence at the start of `text`, 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;  // overlong
  if (lead == 0xed && byte(1) > 0x9f) return 0;  // surrogate
  if (lead == 0xf0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;  // above U+10FFFF
  return length;
}

// Returns whether this character could break the line or reorder it in a terminal.
bool is_unsafe(std::string_view sequence) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(sequence[i]); };
  if (sequence.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (sequence.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;  // C1 controls
  if (sequence.size() == 3 && byte(0) == 0xe2) {
    return (byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f ||      // direction marks
                                (byte(2) >= 0xa8 && byte(2) <= 0xae))) ||  // separators, overrides
           (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);        // isolates
  }
  return false;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    if (i >= max_bytes) return out + "...";
    const size_t length = utf8_length(text.substr(i));
    const std::string_view sequence = text.substr(i, length == 0 ? 1 : length);
    i += sequence.size();
    if (length != 0 && !is_unsafe(sequence)) {
      out += sequence;
    } else if (sequence == "\n") {
      out += "\\n";
    } else if (sequence == "\t") {
      out += "\\t";
    } else {
      for (const char c : sequence) {
        // This avoids format_to() because clang does not find gcc's version in the system's
        // library.
        out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
      }
    }
  }
  return out;
}

std::string printable_name(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.empty()) name = path.parent_path().filename();  // "folder/"
  return printable_path(name.empty() ? path : name);
}

std::string printable_path(const std::filesystem::path& path) {
  return printable(path.native(), 1024);
}

}  // namespace spillway
