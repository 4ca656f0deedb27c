// SPDX-License-Identifier: Apache-2.0
// How a handler answers: at once, later, or in pieces, from whichever thread has the answer.
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
// Thread-safe; what two threads hand over at the same time comes in either order. It may outlive
// the server. No call waits for the client. Dropped without an answer, the client gets a 500;
// dropped within a stream, the connection is closed, so that nobody takes the half for the whole.
// All that hand something over return false when nobody is there any more to take it, and throw
// kInternal when calls come in a wrong order.
class HttpReply {
 public:
  explicit HttpReply(std::shared_ptr<ReplyState> state) : state_(std::move(state)) {}
  ~HttpReply();
  HttpReply(const HttpReply&) = delete;
  HttpReply& operator=(const HttpReply&) = delete;

  bool send(HttpAnswer answer);
  // {"error": {...}}
  bool send_error(const ApiError& error, std::vector<HttpHeader> headers = {});

  bool begin_stream(int status, std::string_view content_type,
                    std::vector<HttpHeader> headers = {});
  // More of the body; an empty one is nothing. When more than HttpOptions::most_stream_bytes wait
  // for the client, this one included, the connection is cut instead. A piece that alone is more
  // counts for nothing there.
  bool write(std::string chunk);
  bool finish();

  // Calls back once, on an I/O thread, when the client has gone or was cut before the answer was
  // complete: the work may stop. One that has only closed its own direction is answered. Must not
  // block. Called at once, on this thread, when it has
  // gone already; forgotten once the answer is complete. Replaces what was set before.
  void on_gone(std::function<void()> callback);
  bool is_gone() const;

 private:
  friend class StreamBatch;
  std::shared_ptr<ReplyState> state_;
};

// Pieces for many streams, handed over together: one wake-up of each I/O thread instead of one a
// piece, which is what a step of the engine should cost. Not thread-safe; keep one and use it
// again. Pieces of one reply stay in order, also with those handed over by HttpReply::write().
class StreamBatch {
 public:
  StreamBatch();
  ~StreamBatch();

  // As HttpReply's.
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

// Whole answers.
HttpAnswer json_answer(int status, std::string body);
HttpAnswer error_answer(const ApiError& error, std::vector<HttpHeader> headers = {});

}  // namespace spillway
