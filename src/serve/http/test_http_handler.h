// SPDX-License-Identifier: Apache-2.0
// Handlers for tests: one that calls a function, one that holds replies, and a helper that waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/http_handler.h"

namespace spillway {

class FunctionHandler : public HttpHandler {
 public:
  using Function =
      std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<HttpReply>)>;
  explicit FunctionHandler(Function function) : function_(std::move(function)) {}
  void handle(std::shared_ptr<const HttpRequest> request,
              std::shared_ptr<HttpReply> reply) override {
    function_(std::move(request), std::move(reply));
  }

 private:
  Function function_;
};

// Answers immediately with "METHOD path?query|body".
class EchoHandler : public HttpHandler {
 public:
  void handle(std::shared_ptr<const HttpRequest> request,
              std::shared_ptr<HttpReply> reply) override {
    std::string text(http_method_name(request->method));
    text += " " + request->path;
    if (!request->query.empty()) text += "?" + request->query;
    text += "|" + request->body;
    reply->send({200, "text/plain", std::move(text), {}});
  }
};

struct HeldRequest {
  std::shared_ptr<const HttpRequest> request;
  std::shared_ptr<HttpReply> reply;
};

// Holds requests until the test answers them.
class HoldingHandler : public HttpHandler {
 public:
  void handle(std::shared_ptr<const HttpRequest> request,
              std::shared_ptr<HttpReply> reply) override {
    const std::lock_guard lock(mutex_);
    held_.push_back({std::move(request), std::move(reply)});
    came_.notify_all();
  }
  // Returns the next request; both members are null if none comes for long.
  HeldRequest next() {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, std::chrono::seconds(20), [&] { return !held_.empty(); })) return {};
    HeldRequest first = std::move(held_.front());
    held_.erase(held_.begin());
    return first;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<HeldRequest> held_;
};

// Returns false if `condition` does not become true in time.
template <class Condition>
bool wait_for(Condition&& condition, std::chrono::milliseconds most = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n";
}
inline std::string post(const std::string& path, const std::string& body,
                        const std::string& headers = "") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

}  // namespace spillway
