// SPDX-License-Identifier: Apache-2.0
// The state that a reply and its connection share, and the messages from one to the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "serve/http/http_request.h"

namespace spillway {

class HttpConnection;
struct ReplyState;

struct ReplyMessage {
  enum class Kind : uint8_t {
    kAnswer,     // sends all of `answer`
    kBegin,      // sends `answer` without body as the head of a stream
    kChunk,      // sends `chunk`
    kFinish,     // ends a stream
    kAbandoned,  // the reply was dropped
    kTooSlow,    // the client is too far behind
  };
  std::shared_ptr<ReplyState> reply;
  Kind kind = Kind::kFinish;
  std::string chunk = {};
  std::unique_ptr<HttpAnswer> answer = {};
};

// Messages to one I/O thread. Thread-safe. It outlives the thread, and then accepts nothing.
class LoopInbox {
 public:
  // `wake` makes the thread call take() soon; it is called from any thread, never after close().
  explicit LoopInbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Both return false after close(). They wake the thread only if the inbox was empty.
  bool push(ReplyMessage message);
  bool push_all(std::vector<ReplyMessage>& messages);  // empties `messages`
  // Moves all messages to `messages`, which must be empty.
  void take(std::vector<ReplyMessage>& messages);
  void close();

 private:
  std::mutex mutex_;
  bool is_open_ = true;
  std::function<void()> wake_;
  std::vector<ReplyMessage> messages_;
};

struct ReplyState {
  enum class Phase : uint8_t { kWaiting, kStreaming, kComplete };

  ReplyState(std::shared_ptr<LoopInbox> to, size_t most_bytes)
      : inbox(std::move(to)), most_stream_bytes(most_bytes) {}

  // Claims the step from one phase to the next; throws kInternal if the reply is in another phase.
  void advance(Phase from, Phase to);
  // Counts bytes of a stream that the client has not taken. Returns kTooMuch once: the client now
  // counts as gone, and the connection has to be told.
  enum class Room : uint8_t { kTaken, kTooMuch, kGone };
  [[nodiscard]] Room reserve(size_t bytes);
  // Marks the client as gone, and calls the callback the first time, unless the answer was
  // complete.
  void go();
  void set_on_gone(std::function<void()> callback);
  // Drops the callback, since the answer is complete.
  void forget_callback();

  const std::shared_ptr<LoopInbox> inbox;
  const size_t most_stream_bytes;
  std::atomic<Phase> phase{Phase::kWaiting};
  std::atomic<bool> is_gone{false};
  // Bytes of a stream that are handed over and not yet taken by the socket. Briefly negative while
  // bytes from before the stream are written.
  std::atomic<int64_t> waiting_bytes{0};
  std::atomic<int64_t> large_bytes{0};   // of these, chunks that alone exceed the limit
  HttpConnection* connection = nullptr;  // for the I/O thread only; null after the answer

 private:
  std::mutex mutex_;
  bool has_gone_ = false;
  std::function<void()> on_gone_;
};

}  // namespace spillway
