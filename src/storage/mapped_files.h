// SPDX-License-Identifier: Apache-2.0
// Which addresses are maps of which files, so that a file that loses its data while it is in use
// ends the process with one line, not with a bare SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace spillway {

// For whoever maps files (MappedFile). Thread-safe. `descriptor` is duplicated.
void remember_map(const std::byte* data, size_t bytes, const std::filesystem::path& path,
                  int descriptor);
void forget_map(const std::byte* data) noexcept;
// What is to be said of a file that was found to be shorter when its map was forgotten: what it
// lost of its last page reads as zeros, without a signal. Empty: none was.
std::string what_maps_lost();

// From now on a page of such a map that cannot be read (the file was cut, or its disk fails) ends
// the process: `before` and one line that names the file on standard error, and `exit_code`. Any
// other SIGBUS does what it did before. Called once, from main().
void end_when_maps_lose_pages(std::string before, int exit_code);

}  // namespace spillway
