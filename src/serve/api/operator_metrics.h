// SPDX-License-Identifier: Apache-2.0
// The part of /metrics that is not the engine's: HTTP, the process, limits, and which key asks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/http_server.h"

namespace spillway {

// Thread-safe.
class OperatorMetrics {
 public:
  OperatorMetrics();
  ~OperatorMetrics();
  OperatorMetrics(const OperatorMetrics&) = delete;
  OperatorMetrics& operator=(const OperatorMetrics&) = delete;

  // `route` is one of those that there are, or "" for anything else: their number is bounded.
  void answered(std::string_view route, int status);
  // `what` the server takes at most.
  void limit(const char* what, double most);

  // A request of this key (KeyRing::label) is open as long as the result is held. Beyond 256
  // keys they are counted together, as "other".
  [[nodiscard]] std::shared_ptr<const void> begin(const std::string& key);
  void ended(const std::string& key, size_t prompt_tokens, size_t generated_tokens);

  // What is only known when somebody looks.
  struct Now {
    HttpCounters http = {};
    size_t unread_requests = 0;  // whose bodies wait for a reading thread
  };
  // The text format of version 0.0.4.
  std::string text(const Now& now);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // open requests may outlive the server
};

}  // namespace spillway
