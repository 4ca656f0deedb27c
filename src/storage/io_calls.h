// SPDX-License-Identifier: Apache-2.0
// Wraps the system calls on files. Each has a fault point (base/fault_points.h), so that tests can
// make every one of them fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/file_descriptor.h"

namespace spillway {

// The fault points are io.open, io.read, io.write, io.allocate, io.truncate, io.punch, io.sync,
// io.link and io.rename. Each call returns what the system returns, or -errno; none retries. One
// call transfers at most 1 GiB.
FileDescriptor open_call(const std::filesystem::path& path, int flags, int mode = 0);
int64_t read_call(int fd, std::span<std::byte> out, uint64_t offset);
int64_t write_call(int fd, std::span<const std::byte> bytes, uint64_t offset);
int64_t append_call(int fd, std::span<const std::byte> bytes);
int64_t allocate_call(int fd, uint64_t bytes);
int64_t truncate_call(int fd, uint64_t bytes);
// Gives these bytes back to the file system; they read as zeros afterwards.
int64_t punch_call(int fd, uint64_t offset, uint64_t bytes);
int64_t sync_call(int fd);
int64_t rename_call(const std::filesystem::path& from, const std::filesystem::path& to);
// Follows a link at `from`, so that /proc/self/fd/N can stand for an unnamed file.
int64_t link_call(const std::filesystem::path& from, const std::filesystem::path& to);

// Returns the system's message, e.g. "No space left on device".
std::string error_text(int64_t error);

}  // namespace spillway
