// SPDX-License-Identifier: Apache-2.0
// The alphabet in which byte-level vocabularies spell bytes: every byte is one printable character
// (GPT-2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// The UTF-8 of the character that stands for `byte`: itself when it is printable Latin-1
// (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF), else U+0100 and on, in the order of the bytes.
std::string_view byte_letter(uint8_t byte);

// "Ġhi" -> " hi"; nullopt when some character stands for no byte.
[[nodiscard]] std::optional<std::string> try_spelled_bytes(std::string_view letters);

// " hi" -> "Ġhi".
std::string spell_bytes(std::string_view bytes);

}  // namespace spillway
