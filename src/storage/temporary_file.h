// SPDX-License-Identifier: Apache-2.0
// Files that end with the process, however it ends (see temporary_name.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "storage/io_file.h"

namespace spillway {

struct TemporaryFileOptions {
  std::filesystem::path dir;
  std::string label = "spill";  // a-z and 0-9; part of the name, for people
  uint64_t bytes = 0;           // the disk must have them before work begins
  IoUser user = IoUser::kWeights;
  // A name in `dir` until the destructor, so that other processes can open it. A crash then leaves
  // the file, until the next TemporaryFile in that folder.
  bool keep_name = false;
};

// Owns the file. Thread-safe as IoFile is. Throws kIo where the folder does not take the file,
// naming how much is missing where the disk is full; kInvalidArgument where there is no folder.
// Making the first one in a folder removes what dead processes left in it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const TemporaryFileOptions& options);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const IoFile& file() const { return *file_; }
  uint64_t bytes() const { return bytes_; }
  // Opens the same file again, from this process (from others with keep_name).
  const std::filesystem::path& path() const { return path_; }

 private:
  uint64_t bytes_;
  std::filesystem::path name_;  // empty where it has none (any more)
  std::filesystem::path path_;
  std::unique_ptr<IoFile> file_;
};

}  // namespace spillway
