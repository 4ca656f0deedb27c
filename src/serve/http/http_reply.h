// SPDX-License-Identifier: Apache-2.0
// How a handler answers: immediately, later, or as a stream, from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/api_error.h"
#include "serve/http/http_request.h"

namespace spillway {

class LoopInbox;
struct ReplyMessage;
struct ReplyState;

// The answer to one request: either send() once, or begin_stream(), write()... and finish().
// Thread-safe; parts handed over by two threads at the same time come in either order. It may
// outlive the server. No call waits for the client. Dropped without an answer, it sends a 500;
// dropped within a stream, it closes the connection, so that a partial answer is not taken for a
// complete one. Functions that hand something over return false if the client is gone, and throw
// kInternal if calls come in a wrong order.
class HttpReply {
 public:
  explicit HttpReply(std::shared_ptr<ReplyState> state) : state_(std::move(state)) {}
  ~HttpReply();
  HttpReply(const HttpReply&) = delete;
  HttpReply& operator=(const HttpReply&) = delete;

  bool send(HttpAnswer answer);
  // Sends {"error": {...}}.
  bool send_error(const ApiError& error, std::vector<HttpHeader> headers = {});

  bool begin_stream(int status, std::string_view content_type,
                    std::vector<HttpHeader> headers = {});
  // Adds a chunk to the body; an empty one does nothing. If more than
  // HttpOptions::most_stream_bytes then wait for the client, cuts the connection instead. A single
  // chunk larger than that does not count.
  bool write(std::string chunk);
  bool finish();

  // Sets a callback, which is called once, on an I/O thread, if the client has gone or was cut off
  // before the answer was complete: the work may stop then. A client that has only closed its own
  // direction is still answered. The callback must not block. It is called immediately, on this
  // thread, if the client has gone already, and forgotten once the answer is complete. Replaces an
  // earlier callback.
  void on_gone(std::function<void()> callback);
  bool is_gone() const;

 private:
  friend class StreamBatch;
  std::shared_ptr<ReplyState> state_;
};

// Chunks for many streams, handed over together: each I/O thread is woken once and not for every
// chunk, which bounds the cost of an engine step. Not thread-safe; keep one and reuse it. Chunks of
// one reply stay in order, also with those of HttpReply::write().
class StreamBatch {
 public:
  StreamBatch();
  ~StreamBatch();

  // These work as HttpReply's.
  bool write(const HttpReply& reply, std::string chunk);
  bool finish(const HttpReply& reply);
  void hand_over();

 private:
  struct Group {
    std::shared_ptr<LoopInbox> inbox;
    std::vector<ReplyMessage> messages;
  };
  std::vector<ReplyMessage>& messages_for(const ReplyState& state);

  std::vector<Group> groups_;  // one for each I/O thread seen so far
};

// These make complete answers.
HttpAnswer json_answer(int status, std::string body);
HttpAnswer error_answer(const ApiError& error, std::vector<HttpHeader> headers = {});

}  // namespace spillway
