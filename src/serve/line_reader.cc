// SPDX-License-Identifier: Apache-2.0
#include "serve/line_reader.h"

namespace spillway {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 18;

}  // namespace

LineReader::LineReader(const PosixFile& file, size_t max_line_bytes)
    : file_(file), max_line_bytes_(max_line_bytes) {}

// Reads more bytes after those in the buffer; returns false at the end of the file.
bool LineReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + kPieceBytes);
  const size_t n = file_.read(file_at_, buffer_.data() + old_size, kPieceBytes);
  buffer_.resize(old_size + n);
  file_at_ += n;
  return n > 0;
}

bool LineReader::next(FileLine& line) {
  line = {};
  line.offset = file_at_ - (buffer_.size() - begin_);
  uint64_t dropped = 0;  // bytes dropped from a line that is too long
  size_t searched = 0;
  while (true) {
    const size_t newline = buffer_.find('\n', begin_ + searched);
    if (newline != std::string::npos) {
      line.complete = true;
      line.text = std::string_view(buffer_).substr(begin_, newline - begin_);
      begin_ = newline + 1;
      break;
    }
    searched = buffer_.size() - begin_;
    if (searched > max_line_bytes_) {
      dropped += searched;
      begin_ = buffer_.size();
      searched = 0;
    }
    if (!fill()) {
      line.text = std::string_view(buffer_).substr(begin_);
      begin_ = buffer_.size();
      if (line.text.empty() && dropped == 0) return false;
      break;
    }
  }
  line.bytes = dropped + line.text.size();
  line.too_long = line.bytes > max_line_bytes_;
  if (line.too_long) line.text = {};
  return true;
}

}  // namespace spillway
