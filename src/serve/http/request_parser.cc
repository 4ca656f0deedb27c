// SPDX-License-Identifier: Apache-2.0
#include "serve/http/request_parser.h"

#include <algorithm>
#include <utility>

#include "serve/api_error.h"
#include "serve/http/http_text.h"

namespace spillway {
namespace {

constexpr size_t kBesideTarget = 64;  // room for the longest method and version

}  // namespace

size_t RequestParser::feed(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size() && stage_ <= Stage::kHead) feed_head_byte(bytes[i++]);
  if (stage_ != Stage::kBody) return i;
  std::string& body = head_.request->body;
  if (chunks_) {
    i += chunks_->feed(bytes.substr(i), body);
    if (chunks_->is_done()) stage_ = Stage::kDone;
    return i;
  }
  const size_t count = std::min<uint64_t>(head_.content_length - body.size(), bytes.size() - i);
  body.append(bytes.substr(i, count));
  if (body.size() == head_.content_length) stage_ = Stage::kDone;
  return i + count;
}

void RequestParser::feed_head_byte(char c) {
  stage_ = Stage::kHead;
  const bool after_cr = text_.size() > line_start_ && text_.back() == '\r';
  if (after_cr != (c == '\n'))
    throw ApiError(400, "invalid_http", "", "a line does not end with CR LF");
  if (c != '\r' && c != '\n' && !is_header_value({&c, 1}))
    throw ApiError(400, "invalid_http", "", "the head has a control character");
  text_ += c;
  if (lines_ == 0 && text_.size() > options_.most_target_bytes + kBesideTarget)
    throw ApiError(414, "uri_too_long", "",
                   fmt::format("the target has more than {} bytes", options_.most_target_bytes));
  if (text_.size() > options_.most_head_bytes)
    throw ApiError(431, "headers_too_large", "",
                   fmt::format("the head has more than {} bytes", options_.most_head_bytes));
  if (c == '\n') end_head_line();
}

void RequestParser::end_head_line() {
  const bool is_blank = text_.size() == line_start_ + 2;
  if (!is_blank) {
    line_start_ = text_.size();
    if (++lines_ > options_.most_headers + 1)
      throw ApiError(431, "too_many_headers", "",
                     fmt::format("there are more than {} headers", options_.most_headers));
    return;
  }
  if (lines_ == 0) {
    // Old clients send a line end after a body (RFC 9112, section 2.2).
    if (std::exchange(had_blank_line_, true))
      throw ApiError(400, "invalid_http", "", "blank lines before a request");
    text_.clear();
    stage_ = Stage::kNothing;
    return;
  }
  head_ = parse_request_head(std::string_view(text_).substr(0, line_start_), options_);
  stage_ = Stage::kHeadDone;
}

void RequestParser::begin_body() {
  SPW_ASSERT(stage_ == Stage::kHeadDone);
  if (head_.content_length > options_.most_body_bytes)
    throw ApiError(413, "request_too_large", "",
                   fmt::format("the body has more than {} bytes", options_.most_body_bytes));
  if (head_.is_chunked) chunks_.emplace(options_);
  stage_ = head_.has_body() ? Stage::kBody : Stage::kDone;
}

size_t RequestParser::body_bytes() const {
  return head_.request == nullptr ? 0 : head_.request->body.capacity();
}

std::shared_ptr<HttpRequest> RequestParser::take() {
  SPW_ASSERT(stage_ == Stage::kDone);
  auto request = std::move(head_.request);
  head_ = RequestHead();
  chunks_.reset();
  text_.clear();
  line_start_ = 0;
  lines_ = 0;
  had_blank_line_ = false;
  stage_ = Stage::kNothing;
  return request;
}

std::string_view RequestParser::first_line() const {
  return std::string_view(text_).substr(0, text_.find('\r'));
}

}  // namespace spillway
