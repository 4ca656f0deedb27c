// SPDX-License-Identifier: Apache-2.0
// Decodes the body of a request that comes in chunks (RFC 9112, section 7.1), as strictly as its
// head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "serve/http/http_options.h"

namespace spillway {

// Decodes one body, whose bytes may be split anywhere. Not thread-safe.
class ChunkedDecoder {
 public:
  explicit ChunkedDecoder(const HttpOptions& options) : options_(options) {}

  // Appends decoded bytes to `body`; returns how many of `bytes` belong to this body. Trailers are
  // checked and dropped. Throws ApiError: 400, 413, 431.
  size_t feed(std::string_view bytes, std::string& body);
  bool is_done() const { return state_ == State::kDone; }

 private:
  enum class State : uint8_t {
    kSize,
    kExtension,
    kSizeEnd,
    kData,
    kDataCr,
    kDataLf,
    kTrailer,
    kDone
  };

  void feed_size(char c);
  void begin_chunk(size_t body_bytes);
  void feed_trailer(char c);

  const HttpOptions& options_;
  State state_ = State::kSize;
  int digits_ = 0;
  uint64_t left_bytes_ = 0;  // bytes left of this chunk; while its size is parsed, the size so far
  size_t chunks_ = 0;
  size_t extension_bytes_ = 0;
  std::string line_;  // current line of the trailers
  size_t trailer_bytes_ = 0;
};

}  // namespace spillway
