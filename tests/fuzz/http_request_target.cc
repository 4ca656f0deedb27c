// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/http/http_text.h"
#include "serve/http/request_parser.h"
#include "tests/fuzz/fuzz_targets.h"

namespace spillway {
namespace {

// Limits are small, so that a few bytes reach each of them.
HttpOptions small_limits() {
  HttpOptions options;
  options.most_head_bytes = 512;
  options.most_headers = 8;
  options.most_target_bytes = 64;
  options.most_body_bytes = 256;
  options.most_chunks = 8;
  options.most_chunk_extension_bytes = 16;
  return options;
}

bool same(const HttpHeader& a, const HttpHeader& b) {
  return a.name == b.name && a.value == b.value;
}

bool same(const HttpRequest& a, const HttpRequest& b) {
  return a.method == b.method && a.target == b.target && a.path == b.path && a.query == b.query &&
         a.body == b.body &&
         std::ranges::equal(a.headers, b.headers,
                            [](const HttpHeader& x, const HttpHeader& y) { return same(x, y); });
}

struct Read {
  std::vector<std::shared_ptr<HttpRequest>> requests;
  int status = 0;  // of the error that ended it; 0: no error
  std::string error;
  RequestParser::Stage stage{};  // if there was no error
};

void check_request(const HttpRequest& request, const HttpOptions& options) {
  SPW_ASSERT(request.target.size() <= options.most_target_bytes);
  SPW_ASSERT(request.headers.size() <= options.most_headers);
  SPW_ASSERT(request.body.size() <= options.most_body_bytes);
  SPW_ASSERT(request.path == "*" || request.path.starts_with('/'));
  SPW_ASSERT(is_header_value(request.path) && is_header_value(request.target));
  for (const HttpHeader& header : request.headers) {
    SPW_ASSERT(is_http_token(header.name) && header.name == lower_ascii(header.name));
    SPW_ASSERT(is_header_value(header.value) && header.value == trim_blanks(header.value));
  }
}

// Reads as a connection does: `cut` returns how many of the remaining bytes come next.
template <class Cut>
Read read(std::string_view bytes, const Cut& cut) {
  using Stage = RequestParser::Stage;
  const HttpOptions options = small_limits();
  RequestParser parser(options);
  Read read;
  try {
    while (!bytes.empty()) {
      std::string_view piece = bytes.substr(0, std::max<size_t>(1, cut(bytes.size())));
      bytes.remove_prefix(piece.size());
      while (!piece.empty()) {
        const size_t taken = parser.feed(piece);
        piece.remove_prefix(taken);
        const bool goes_on = parser.stage() == Stage::kHeadDone || parser.stage() == Stage::kDone;
        SPW_ASSERT(goes_on || piece.empty());
        if (parser.stage() == Stage::kHeadDone) parser.begin_body();
        if (parser.stage() != Stage::kDone) continue;
        read.requests.push_back(parser.take());
        check_request(*read.requests.back(), options);
      }
    }
    read.stage = parser.stage();
  } catch (const ApiError& error) {
    SPW_ASSERT(error.status() >= 400 && error.status() <= 505);
    read.status = error.status();
    read.error = error.what();
  }
  return read;
}

void expect_same(const Read& a, const Read& b) {
  SPW_ASSERT(a.status == b.status && a.error == b.error && a.stage == b.stage);
  SPW_ASSERT(a.requests.size() == b.requests.size());
  for (size_t i = 0; i < a.requests.size(); ++i) SPW_ASSERT(same(*a.requests[i], *b.requests[i]));
}

}  // namespace

void fuzz_http_request(std::string_view bytes) {
  const Read whole = read(bytes, [](size_t left) { return left; });
  expect_same(whole, read(bytes, [](size_t) { return size_t{1}; }));
  std::mt19937_64 draw(bytes.size());
  expect_same(whole, read(bytes, [&](size_t) { return 1 + draw() % 17; }));
}

}  // namespace spillway
