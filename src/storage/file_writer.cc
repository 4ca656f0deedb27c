// SPDX-License-Identifier: Apache-2.0
#include "storage/file_writer.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "storage/io_calls.h"
#include "storage/temporary_name.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr int kMode = 0666;  // less the user's umask
constexpr const char* kLabel = "out";

}  // namespace

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  SPW_CHECK(!fs::exists(status) || fs::is_regular_file(status), kInvalidArgument,
            "{} is {}, not a file that can be written; give another name", printable_path(path),
            fs::is_directory(status) ? "a folder" : "a device, FIFO or socket");
  if (fs::is_symlink(path, error)) path_ = fs::weakly_canonical(path, error);
  folder_ = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  remove_dead_once(folder_);
  fd_ = open_unnamed(folder_, kMode);
  if (fd_.is_open() && !fs::exists(path_of_descriptor(fd_.get()), error)) {
    fd_ = FileDescriptor(-EOPNOTSUPP);  // without /proc it could never get a name
  }
  if (has_no_unnamed_files(fd_.get())) fd_ = open_named(folder_, kLabel, kMode, temporary_);
  SPW_CHECK(fd_.is_open(), kIo, "cannot create {}: {}", printable_path(path_),
            error_text(fd_.get()));
}

FileWriter::~FileWriter() {
  if (fd_.is_open() && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t n = append_call(fd_.get(), bytes);
    if (n == -EINTR) continue;
    SPW_CHECK(n >= 0, kIo, "writing {}: {}", printable_path(path_), error_text(n));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void FileWriter::sync() {
  int64_t result = 0;
  do {
    result = sync_call(fd_.get());
  } while (result == -EINTR);
  // EINVAL means that this kind of file cannot be synced.
  SPW_CHECK(result == 0 || result == -EINVAL, kIo, "writing {}: {}", printable_path(path_),
            error_text(result));
}

void FileWriter::commit() {
  sync();  // before the rename, so that a name found after a crash has its bytes
  int64_t result = temporary_.empty() ? give_name(fd_.get(), folder_, kLabel, temporary_) : 0;
  if (result == 0) result = rename_call(temporary_, path_);
  SPW_CHECK(result == 0, kIo, "writing {}: {}", printable_path(path_), error_text(result));
  fd_.close();
}

}  // namespace spillway
