// SPDX-License-Identifier: Apache-2.0
// Who answers requests.
#pragma once

#include <memory>
#include <optional>

#include "serve/http/http_reply.h"
#include "serve/http/http_request.h"

namespace spillway {

// Called on the server's I/O threads, with several of them at the same time. Must not block: what
// takes longer than some microseconds belongs to a thread of its own, which then uses the reply.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Once the head is there, before the body is read: an answer here (to a caller without a key, to
  // an unknown path) keeps strangers from making the server read megabytes. May throw as handle().
  [[nodiscard]] virtual std::optional<HttpAnswer> try_answer_head(const HttpRequest& head) {
    static_cast<void>(head);
    return std::nullopt;
  }

  // The whole request. An ApiError thrown before the reply was used is the answer; anything else
  // is logged and answered with 500.
  virtual void handle(std::shared_ptr<const HttpRequest> request,
                      std::shared_ptr<HttpReply> reply) = 0;
};

}  // namespace spillway
