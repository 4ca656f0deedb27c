// SPDX-License-Identifier: Apache-2.0
#include "storage/temporary_file.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "storage/io_calls.h"
#include "storage/temporary_name.h"

namespace spillway {
namespace {

[[noreturn]] void fail_full(const TemporaryFileOptions& options) {
  struct statvfs info {};
  uint64_t free_bytes = 0;
  if (::statvfs(options.dir.c_str(), &info) == 0) {
    free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }
  const uint64_t missing = options.bytes > free_bytes ? options.bytes - free_bytes : 0;
  fail(ErrorCode::kIo,
       "the disk of {} is full: {} are needed for {}, {} free, {} missing; free some, or give less "
       "with --disk-memory or another --disk-dir",
       printable_path(options.dir), format_bytes(options.bytes), options.label,
       format_bytes(free_bytes), format_bytes(missing));
}

void allocate(int fd, const TemporaryFileOptions& options) {
  if (options.bytes == 0) return;
  // This is checked first, because an allocation that fails fills the disk for everyone meanwhile.
  struct statvfs info {};
  if (::fstatvfs(fd, &info) == 0 && info.f_blocks > 0 &&
      options.bytes / info.f_frsize > info.f_bavail) {
    fail_full(options);
  }
  int64_t result = 0;
  do {
    result = allocate_call(fd, options.bytes);
  } while (result == -EINTR);
  if (result == -ENOSPC || result == -EDQUOT) fail_full(options);
  // Some file systems cannot reserve space: only the length is set, and ENOSPC comes when writing.
  if (result == -EOPNOTSUPP || result == -EINVAL || result == -ENOSYS) {
    log_warning("{} cannot set disk space aside; it may run out later",
                printable_path(options.dir));
    do {
      result = truncate_call(fd, options.bytes);
    } while (result == -EINTR);
  }
  SPW_CHECK(result == 0, kIo,
            "no {} for {} in {}: {}; give less with --disk-memory, or another --disk-dir",
            format_bytes(options.bytes), options.label, printable_path(options.dir),
            error_text(result));
}

}  // namespace

TemporaryFile::TemporaryFile(const TemporaryFileOptions& options) : bytes_(options.bytes) {
  SPW_ASSERT(!options.label.empty() &&
             options.label.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") ==
                 std::string::npos);
  std::error_code error;
  SPW_CHECK(std::filesystem::is_directory(options.dir, error), kInvalidArgument,
            "{} is not a folder for temporary files; make it, or give another --disk-dir",
            printable_path(options.dir));
  remove_dead_once(options.dir);
  FileDescriptor fd =
      options.keep_name ? FileDescriptor(-EOPNOTSUPP) : open_unnamed(options.dir, 0600);
  if (has_no_unnamed_files(fd.get())) fd = open_named(options.dir, options.label, 0600, name_);
  SPW_CHECK(fd.is_open(), kIo, "cannot create a temporary file in {}: {}",
            printable_path(options.dir), error_text(fd.get()));
  path_ = name_;
  const std::filesystem::path by_descriptor = path_of_descriptor(fd.get());
  if (name_.empty()) {
    path_ = by_descriptor;
  } else if (!options.keep_name && std::filesystem::exists(by_descriptor, error) &&
             ::unlink(name_.c_str()) == 0) {
    name_.clear();  // like O_TMPFILE, except for the moment in between
    path_ = by_descriptor;
  }
  try {
    allocate(fd.get(), options);
    // Messages name the folder, because the number of a descriptor tells users nothing.
    file_ = std::make_unique<IoFile>(
        std::move(fd), name_.empty() ? options.dir / ("(" + options.label + ")") : name_,
        options.user);
  } catch (...) {
    if (!name_.empty()) ::unlink(name_.c_str());
    throw;
  }
}

TemporaryFile::~TemporaryFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
}

}  // namespace spillway
