// SPDX-License-Identifier: Apache-2.0
#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace spillway {
namespace {

constexpr int kLetters = 0x100 + 68;  // 68 bytes are not printable

struct Alphabet {
  std::array<std::string, 256> letters;
  std::array<int16_t, kLetters> bytes;  // by code point, -1 if it stands for no byte

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t letter = printable ? static_cast<char32_t>(byte) : next++;
      append_utf8(letters[static_cast<size_t>(byte)], letter);
      bytes[letter] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_letter(uint8_t byte) { return alphabet().letters[byte]; }

std::optional<std::string> try_spelled_bytes(std::string_view letters) {
  const auto& bytes = alphabet().bytes;
  std::string result;
  for (size_t i = 0; i < letters.size();) {
    const Utf8Char c = decode_utf8(letters, i);
    if (!c.valid || c.code_point >= kLetters || bytes[c.code_point] < 0) return std::nullopt;
    result.push_back(static_cast<char>(bytes[c.code_point]));
    i += c.bytes;
  }
  return result;
}

std::string spell_bytes(std::string_view bytes) {
  std::string result;
  for (char byte : bytes) result.append(byte_letter(static_cast<uint8_t>(byte)));
  return result;
}

}  // namespace spillway
