// SPDX-License-Identifier: Apache-2.0
// Files that vanish with the process, however it ends (see temporary_name.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "storage/io_file.h"

namespace spillway {

struct TemporaryFileOptions {
  std::filesystem::path dir;
  std::string label = "spill";  // a-z and 0-9; part of the name, shown to users
  uint64_t bytes = 0;           // must be free on the disk before work begins
  IoUser user = IoUser::kWeights;
  // Keeps a name in `dir` until the destructor, so that other processes can open the file. After a
  // crash it stays until the next TemporaryFile in that folder.
  bool keep_name = false;
};

// Owns the file. Thread-safe like IoFile. Throws kIo if the file cannot be made, saying how much is
// missing if the disk is full, and kInvalidArgument if the folder does not exist. The first one
// made in a folder removes what dead processes left there.
class TemporaryFile {
 public:
  explicit TemporaryFile(const TemporaryFileOptions& options);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const IoFile& file() const { return *file_; }
  uint64_t bytes() const { return bytes_; }
  // A path that opens the same file again, from this process (with keep_name also from others).
  const std::filesystem::path& path() const { return path_; }

 private:
  uint64_t bytes_;
  std::filesystem::path name_;  // empty if the file has no name (any more)
  std::filesystem::path path_;
  std::unique_ptr<IoFile> file_;
};

}  // namespace spillway
