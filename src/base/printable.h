// SPDX-License-Identifier: Apache-2.0
// Makes text from files safe to print, always on one line.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace spillway {

// Returns `text` with control characters, line separators, direction marks and invalid UTF-8
// written as \n, \t or \xNN, cut after `max_bytes` input bytes with "...".
std::string printable(std::string_view text, size_t max_bytes = 120);
// Returns the last component of `path`, printable; the whole path if it has none.
std::string printable_name(const std::filesystem::path& path);
// Returns the whole path, printable.
std::string printable_path(const std::filesystem::path& path);

}  // namespace spillway
