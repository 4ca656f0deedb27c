// SPDX-License-Identifier: Apache-2.0
// The folder that holds block folders (block_folder.h): their names, and what they may take
// together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "memory/block_folder_index.h"

namespace spillway {

std::string folder_name(const FolderIdentity& identity);

// For nobody else's eyes. Throws kInvalidArgument where there is something else, or no place for
// it; kIo for what the system refuses.
void make_private_folder(const std::filesystem::path& path);

// What the block folders in `dir` take on disk; 0 where there are none.
uint64_t block_folders_bytes(const std::filesystem::path& dir);

// Warns in one line where `dir` has block folders and none of them is one of `own`.
void say_if_none_fits(const std::filesystem::path& dir,
                      const std::vector<std::filesystem::path>& own);

// Removes block folders in `dir`, the longest unused first, until all but `own` take no more than
// `most` bytes: nothing else, and none that a process uses. What is left of them.
uint64_t remove_unused_folders(const std::filesystem::path& dir,
                               const std::vector<std::filesystem::path>& own, uint64_t most);

}  // namespace spillway
