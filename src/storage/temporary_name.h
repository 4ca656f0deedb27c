// SPDX-License-Identifier: Apache-2.0
// Names for files that are unfinished or temporary: they have no name where the system allows that,
// else one by which the next process recognizes the files of a dead process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Removes the named temporary files of processes that have ended, and returns their number. It
// never removes files of running processes (which hold a lock on each), files with other names or
// of other users, or anything that is no regular file. Files that cannot be examined stay.
int remove_dead_temporary_files(const std::filesystem::path& dir);

// Returns "spillway-kv-4711-123456-89abcdef01234567-0.tmp": label, process id, its start time, this
// boot and process namespace, and a number. Exposed for tests.
std::string temporary_file_name(std::string_view label, int64_t pid, uint64_t start,
                                uint64_t instance, uint64_t number);
// Returns when the process began, in ticks since boot; 0 if there is none or it is not known.
uint64_t process_start(int64_t pid);
// Identifies this boot and process namespace; process ids of another one mean nothing here.
uint64_t process_instance();

// Removes what dead processes left in a folder, at the first call for that folder only, because a
// process makes many files.
void remove_dead_once(const std::filesystem::path& dir);

// The next functions open files for reading and writing.
FileDescriptor open_unnamed(const std::filesystem::path& dir, int mode);
// Whether the error of open_unnamed() means that there are no unnamed files here.
bool has_no_unnamed_files(int error);
// Creates a file with a new name and locks it; `label` has a-z and 0-9.
FileDescriptor open_named(const std::filesystem::path& dir, std::string_view label, int mode,
                          std::filesystem::path& name);
// Gives an unnamed file a new name, as open_named() does, and locks it. Returns 0 or -errno.
int64_t give_name(int fd, const std::filesystem::path& dir, std::string_view label,
                  std::filesystem::path& name);
// Returns a path that opens the same file again from this process, on systems with /proc.
std::filesystem::path path_of_descriptor(int fd);

}  // namespace spillway
