// SPDX-License-Identifier: Apache-2.0
// The interface of what answers HTTP requests.
#pragma once

#include <memory>
#include <optional>

#include "serve/http/http_reply.h"
#include "serve/http/http_request.h"

namespace spillway {

inline constexpr int kStatusClientGone = 499;  // nginx's log code; never sent

// Its functions are called on the server's I/O threads, concurrently. They must not block: work
// that takes longer than some microseconds belongs on another thread, which then uses the reply.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called when the head is parsed, before the body is read. An answer from here (for a missing key
  // or an unknown path) keeps clients from making the server read megabytes. May throw as handle()
  // may.
  [[nodiscard]] virtual std::optional<HttpAnswer> try_answer_head(const HttpRequest& head) {
    static_cast<void>(head);
    return std::nullopt;
  }

  // Returns whether a request with this head is a health check, which is answered even if there are
  // too many connections: it takes no resources from others.
  [[nodiscard]] virtual bool is_probe(const HttpRequest& head) const {
    static_cast<void>(head);
    return false;
  }

  // Called after each answer, complete or not, with its status, or kStatusClientGone if the client
  // left before one began. `request` is null if none could be parsed.
  virtual void answered(const HttpRequest* request, int status) {
    static_cast<void>(request);
    static_cast<void>(status);
  }

  // Handles a complete request. An ApiError thrown before the reply is used becomes the answer;
  // other exceptions are logged and answered with 500.
  virtual void handle(std::shared_ptr<const HttpRequest> request,
                      std::shared_ptr<HttpReply> reply) = 0;
};

}  // namespace spillway
