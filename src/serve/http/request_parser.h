// SPDX-License-Identifier: Apache-2.0
// Parses the bytes of a connection into requests, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/chunked_decoder.h"
#include "serve/http/http_options.h"
#include "serve/http/request_head.h"

namespace spillway {

// Independent of sockets. Holds at most a head and a body of the sizes that the options allow, and
// allocates nothing because a length was announced. Not thread-safe. After an exception it is
// unusable: the following bytes cannot be told apart from the bad request.
class RequestParser {
 public:
  enum class Stage : uint8_t { kNothing, kHead, kHeadDone, kBody, kDone };

  explicit RequestParser(const HttpOptions& options) : options_(options) {}

  // Takes bytes until the head or the request is complete; returns how many. Takes none in
  // kHeadDone and kDone. Throws ApiError for a client's mistake.
  size_t feed(std::string_view bytes);
  Stage stage() const { return stage_; }

  // Valid from kHeadDone on, also after an exception if the head was complete.
  const RequestHead& head() const { return head_; }
  bool has_head() const { return head_.request != nullptr; }
  // Goes on from kHeadDone to the body, which may be empty. Throws ApiError(413).
  void begin_body();
  size_t body_bytes() const;
  // Returns the complete request in kDone; then the next one may come.
  std::shared_ptr<HttpRequest> take();
  // Returns the request line so far, for logs.
  std::string_view first_line() const;

 private:
  void feed_head_byte(char c);
  void end_head_line();

  const HttpOptions& options_;
  Stage stage_ = Stage::kNothing;
  std::string text_;       // the head so far
  size_t line_start_ = 0;  // position in text_
  size_t lines_ = 0;
  bool had_blank_line_ = false;
  RequestHead head_;
  std::optional<ChunkedDecoder> chunks_;
};

}  // namespace spillway
