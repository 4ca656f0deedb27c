// SPDX-License-Identifier: Apache-2.0
#include "storage/byte_cursor.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {

std::string ByteCursor::prefix() const {
  return context_.empty() ? source_.label() + ": "
                          : fmt::format("{}: {}: ", source_.label(), context_);
}

void ByteCursor::require(uint64_t bytes, std::string_view field) const {
  SPW_CHECK(bytes <= remaining(), kInvalidArgument,
            "{}{} at byte {} needs {} bytes but the file ends at {}; the file is truncated or "
            "damaged, download it again",
            prefix(), field, position_, bytes, source_.size());
}

void ByteCursor::read_bytes(std::span<std::byte> out, std::string_view field) {
  require(out.size(), field);
  if (out.empty()) return;
  if (out.size() >= kWindowBytes) {
    source_.read_exact(position_, out);
  } else {
    const bool inside =
        position_ >= window_start_ && position_ + out.size() <= window_start_ + window_.size();
    if (!inside) {
      window_.resize(std::min<uint64_t>(kWindowBytes, remaining()));
      window_start_ = position_;
      source_.read_exact(window_start_, window_);
    }
    std::memcpy(out.data(), window_.data() + (position_ - window_start_), out.size());
  }
  position_ += out.size();
}

uint64_t ByteCursor::read_string_length(std::string_view field, uint64_t max_bytes) {
  const uint64_t at = position_;
  const auto length = read<uint64_t>(field);
  SPW_CHECK(length <= max_bytes, kInvalidArgument, "{}{} at byte {} has a length of {}, over {}",
            prefix(), field, at, length, max_bytes);
  require(length, field);
  return length;
}

std::string ByteCursor::read_string(std::string_view field, uint64_t max_bytes) {
  std::string text(read_string_length(field, max_bytes), '\0');
  read_bytes(std::as_writable_bytes(std::span(text)), field);
  return text;
}

void ByteCursor::skip(uint64_t bytes, std::string_view field) {
  require(bytes, field);
  position_ += bytes;
}

void ByteCursor::seek(uint64_t position) {
  SPW_ASSERT(position <= source_.size());
  position_ = position;
}

}  // namespace spillway
