// SPDX-License-Identifier: Apache-2.0
// Files that are not whole yet, or never meant to stay: without a name where the system can do
// that, else with a name that the next process knows to be a dead one's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Removes the named temporary files of processes that have ended, and says how many. Never those
// of living ones (which hold a lock on each), nor anything with another name, of another user, or
// that is no regular file. What cannot be looked at stays.
int remove_dead_temporary_files(const std::filesystem::path& dir);

// "spillway-kv-4711-123456-89abcdef01234567-0.tmp": label, process, its start, this boot and
// process namespace, and a number. For tests.
std::string temporary_file_name(std::string_view label, int64_t pid, uint64_t start,
                                uint64_t instance, uint64_t number);
// When the process began, in ticks since boot; 0 where there is none, or it cannot be known.
uint64_t process_start(int64_t pid);
// This boot and process namespace: where these differ, a process number means nothing.
uint64_t process_instance();

// The first call for a folder removes what dead processes left in it, later ones do nothing: a
// process has many files.
void remove_dead_once(const std::filesystem::path& dir);

// These open for reading and writing.
FileDescriptor open_unnamed(const std::filesystem::path& dir, int mode);
// Whether the answer of open_unnamed() says that there is no such thing here.
bool has_no_unnamed_files(int error);
// With a name of our own, locked; `label` has a-z and 0-9.
FileDescriptor open_named(const std::filesystem::path& dir, std::string_view label, int mode,
                          std::filesystem::path& name);
// Gives an unnamed file such a name, locked; 0 or -errno.
int64_t give_name(int fd, const std::filesystem::path& dir, std::string_view label,
                  std::filesystem::path& name);
// Opens the same file again, from this process, where the system has /proc.
std::filesystem::path path_of_descriptor(int fd);

}  // namespace spillway
