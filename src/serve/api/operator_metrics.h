// SPDX-License-Identifier: Apache-2.0
// The metrics besides the engine's: HTTP, the process, limits, and requests by API key.
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

  // Counts an answer. `route` is one of the router's, or "" for anything else, so that the number
  // of labels is bounded.
  void answered(std::string_view route, int status);
  // Sets the limit of `what`, which the server takes at most.
  void limit(const char* what, double most);

  // Counts a request of this key (KeyRing::label) as open while the result is held. Keys beyond the
  // first 256 are counted together as "other".
  [[nodiscard]] std::shared_ptr<const void> begin(const std::string& key);
  void ended(const std::string& key, size_t prompt_tokens, size_t generated_tokens);

  // Values that are read only when metrics are requested.
  struct Now {
    HttpCounters http = {};
    size_t unread_requests = 0;  // bodies that wait for a reader thread
  };
  // Returns the text format of version 0.0.4.
  std::string text(const Now& now);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared, since open requests may outlive the server
};

}  // namespace spillway
