// SPDX-License-Identifier: Apache-2.0
// Manages the folder that contains the block folders (block_folder.h): their names, and the space
// that they take together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "memory/block_folder_index.h"

namespace spillway {

std::string folder_name(const FolderIdentity& identity);

// Makes a folder that only its owner can read, if there is none yet. Throws kInvalidArgument if
// something else has that path, or the folder cannot be made.
void make_private_folder(const std::filesystem::path& path);

// The bytes that the block folders in `dir` take on disk; 0 if there are none.
uint64_t block_folders_bytes(const std::filesystem::path& dir);

// Warns in one line where `dir` has block folders and none of them is one of `own`.
void warn_if_none_fits(const std::filesystem::path& dir,
                       const std::vector<std::filesystem::path>& own);

// Removes block folders in `dir`, the longest unused first, until all but `own` take no more than
// `most` bytes. Removes nothing else, and none that a process uses. Returns the bytes that the
// others then take.
uint64_t remove_unused_folders(const std::filesystem::path& dir,
                               const std::vector<std::filesystem::path>& own, uint64_t most);

}  // namespace spillway
