// SPDX-License-Identifier: Apache-2.0
// Who answers requests.
#pragma once

#include <memory>
#include <optional>

#include "serve/http/http_reply.h"
#include "serve/http/http_request.h"

namespace spillway {

inline constexpr int kStatusClientGone = 499;  // as nginx logs it; never sent

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

  // Whether a request with this head is answered even where there are too many connections: it asks
  // how the server is, and takes nothing from others.
  [[nodiscard]] virtual bool is_probe(const HttpRequest& head) const {
    static_cast<void>(head);
    return false;
  }

  // After each answer, whole or not, also to what was no request (then `request` is null): its
  // status, or kStatusClientGone where the client left before there was one.
  virtual void answered(const HttpRequest* request, int status) {
    static_cast<void>(request);
    static_cast<void>(status);
  }

  // The whole request. An ApiError thrown before the reply was used is the answer; anything else
  // is logged and answered with 500.
  virtual void handle(std::shared_ptr<const HttpRequest> request,
                      std::shared_ptr<HttpReply> reply) = 0;
};

}  // namespace spillway
