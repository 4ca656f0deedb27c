// SPDX-License-Identifier: Apache-2.0
#include "serve/http/chunked_decoder.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/http/http_text.h"
#include "serve/http/request_head.h"

namespace spillway {
namespace {

constexpr int kMostDigits = 15;  // far above every limit, and too few for an overflow

[[noreturn]] void refuse(const std::string& message) {
  throw ApiError(400, "invalid_http", "", message);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

size_t ChunkedDecoder::feed(std::string_view bytes, std::string& body) {
  size_t i = 0;
  while (i < bytes.size() && state_ != State::kDone) {
    if (state_ == State::kData) {
      const size_t count = std::min<uint64_t>(left_bytes_, bytes.size() - i);
      body.append(bytes.substr(i, count));
      i += count;
      left_bytes_ -= count;
      if (left_bytes_ == 0) state_ = State::kDataCr;
      continue;
    }
    const char c = bytes[i++];
    switch (state_) {
      case State::kSize:
      case State::kExtension:
        feed_size(c);
        break;
      case State::kSizeEnd:
        if (c != '\n') refuse("a chunk's size ends without a line end");
        begin_chunk(body.size());
        break;
      case State::kDataCr:
        if (c != '\r') refuse("a chunk is longer than its size");
        state_ = State::kDataLf;
        break;
      case State::kDataLf:
        if (c != '\n') refuse("a chunk is longer than its size");
        state_ = State::kSize;
        digits_ = 0;
        break;
      case State::kTrailer:
        feed_trailer(c);
        break;
      case State::kData:
      case State::kDone:
        break;
    }
  }
  return i;
}

void ChunkedDecoder::feed_size(char c) {
  if (c == '\r') {
    if (digits_ == 0) refuse("a chunk has no size");
    state_ = State::kSizeEnd;
    return;
  }
  if (state_ == State::kExtension) {
    if (++extension_bytes_ > options_.most_chunk_extension_bytes)
      refuse(fmt::format("chunks have more than {} bytes of extensions",
                         options_.most_chunk_extension_bytes));
    if (!is_header_value({&c, 1})) refuse("a chunk's extension has a control character");
    return;
  }
  if (c == ';' && digits_ > 0) {
    state_ = State::kExtension;
    return;
  }
  const int digit = hex_digit(c);
  if (digit < 0) refuse("a chunk's size is no hexadecimal number");
  if (++digits_ > kMostDigits) refuse("a chunk's size has too many digits");
  left_bytes_ = left_bytes_ * 16 + static_cast<uint64_t>(digit);
}

void ChunkedDecoder::begin_chunk(size_t body_bytes) {
  if (left_bytes_ == 0) {
    state_ = State::kTrailer;
    return;
  }
  if (++chunks_ > options_.most_chunks)
    throw ApiError(413, "too_many_chunks", "",
                   fmt::format("the body has more than {} chunks", options_.most_chunks));
  if (left_bytes_ > options_.most_body_bytes || body_bytes + left_bytes_ > options_.most_body_bytes)
    throw ApiError(413, "request_too_large", "",
                   fmt::format("the body has more than {} bytes", options_.most_body_bytes));
  state_ = State::kData;
}

void ChunkedDecoder::feed_trailer(char c) {
  if (++trailer_bytes_ > options_.most_head_bytes)
    throw ApiError(431, "headers_too_large", "",
                   fmt::format("trailers have more than {} bytes", options_.most_head_bytes));
  const bool after_cr = line_.ends_with('\r');
  if (c == '\n') {
    if (!after_cr) refuse("a trailer's line does not end with CR LF");
    line_.pop_back();
    if (line_.empty()) {
      state_ = State::kDone;
      return;
    }
    parse_header_line(line_);
    line_.clear();
    return;
  }
  if (after_cr || (c != '\r' && !is_header_value({&c, 1})))
    refuse("a trailer has a control character");
  line_ += c;
}

}  // namespace spillway
