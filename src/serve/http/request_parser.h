// SPDX-License-Identifier: Apache-2.0
// Bytes of a connection to requests, one after the other.
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

// Knows nothing of sockets, and holds at most a head and a body of the sizes that the options
// allow; nothing is allocated because a length was announced. Not thread-safe. After a throw it is
// of no use any more: what follows in the connection cannot be told apart from the bad request.
class RequestParser {
 public:
  enum class Stage : uint8_t { kNothing, kHead, kHeadDone, kBody, kDone };

  explicit RequestParser(const HttpOptions& options) : options_(options) {}

  // Takes bytes until the head or the request is complete; returns how many. In kHeadDone and
  // kDone it takes none. Throws ApiError: what the client did wrong.
  size_t feed(std::string_view bytes);
  Stage stage() const { return stage_; }

  // From kHeadDone on; also after a throw, where the head was complete.
  const RequestHead& head() const { return head_; }
  bool has_head() const { return head_.request != nullptr; }
  // In kHeadDone: goes on to the body, which may have no bytes. Throws ApiError(413).
  void begin_body();
  size_t body_bytes() const;
  // In kDone: the whole request. Then the next one may come.
  std::shared_ptr<HttpRequest> take();
  // What the request line was so far, for logs.
  std::string_view first_line() const;

 private:
  void feed_head_byte(char c);
  void end_head_line();

  const HttpOptions& options_;
  Stage stage_ = Stage::kNothing;
  std::string text_;       // of the head so far
  size_t line_start_ = 0;  // in it
  size_t lines_ = 0;
  bool had_blank_line_ = false;
  RequestHead head_;
  std::optional<ChunkedDecoder> chunks_;
};

}  // namespace spillway
