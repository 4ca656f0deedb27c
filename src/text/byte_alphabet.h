// SPDX-License-Identifier: Apache-2.0
// Maps bytes to the alphabet that byte-level vocabularies (GPT-2) are spelled in: every byte is one
// printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// Returns the UTF-8 of the character that stands for `byte`: the byte's own character if that is
// printable Latin-1 (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF), else one from U+0100 on, in the order of the
// bytes.
std::string_view byte_letter(uint8_t byte);

// Maps "Ġhi" to " hi"; returns nullopt if some character stands for no byte.
[[nodiscard]] std::optional<std::string> try_spelled_bytes(std::string_view letters);

// Maps " hi" to "Ġhi".
std::string spell_bytes(std::string_view bytes);

}  // namespace spillway
