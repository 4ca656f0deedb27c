// SPDX-License-Identifier: Apache-2.0
// Reads the lines of a file one by one, in bounded memory however long they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/posix_file.h"

namespace spillway {

struct FileLine {
  uint64_t offset = 0;    // position in the file
  uint64_t bytes = 0;     // length without the newline
  std::string_view text;  // valid until the next line is read; empty if too_long
  bool too_long = false;  // longer than the reader keeps
  bool complete = false;  // ends with a newline, not with the file
};

// Keeps a reference to the file. Not thread-safe.
class LineReader {
 public:
  LineReader(const PosixFile& file, size_t max_line_bytes);

  // Returns false at the end of the file. Throws kIo.
  [[nodiscard]] bool next(FileLine& line);

 private:
  bool fill();

  const PosixFile& file_;
  size_t max_line_bytes_;
  uint64_t file_at_ = 0;  // where the next bytes are read
  std::string buffer_;
  size_t begin_ = 0;  // start of the bytes that are not returned yet
};

}  // namespace spillway
