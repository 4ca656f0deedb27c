// SPDX-License-Identifier: Apache-2.0
// Remembers which addresses are maps of which files, so that a file that loses its data while in
// use ends the process with one line instead of a bare SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace spillway {

// Records and forgets a map; called by code that maps files (MappedFile). Thread-safe. `descriptor`
// is duplicated.
void remember_map(const std::byte* data, size_t bytes, const std::filesystem::path& path,
                  int descriptor);
void forget_map(const std::byte* data) noexcept;
// Returns a message if some file was found truncated when its map was forgotten, else an empty
// text. This is needed because the lost part of a file's last page reads as zeros without a signal.
std::string lost_pages_message();

// Makes the process end when a page of a recorded map cannot be read (because the file was
// truncated or its disk fails): it writes `before` and one line naming the file to standard error,
// and exits with `exit_code`. Any other SIGBUS has its former effect. Called once, from main().
void end_when_maps_lose_pages(std::string before, int exit_code);

}  // namespace spillway
