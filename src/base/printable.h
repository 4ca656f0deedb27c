// SPDX-License-Identifier: Apache-2.0
// Text from files made safe to print: one line, whatever is in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace spillway {

// `text` with control characters, line separators, direction marks and invalid UTF-8 written as
// \n, \t or \xNN, cut after `max_bytes` input bytes with "...".
std::string printable(std::string_view text, size_t max_bytes = 120);
// The last component of `path`, printable; the whole path when it has none.
std::string printable_name(const std::filesystem::path& path);
// The whole path, printable.
std::string printable_path(const std::filesystem::path& path);

}  // namespace spillway
