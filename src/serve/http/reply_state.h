// SPDX-License-Identifier: Apache-2.0
// What a reply and its connection share, and how words go from one to the other.
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
    kAnswer,     // `answer`, whole
    kBegin,      // `answer` without body: the head of a stream
    kChunk,      // `chunk`
    kFinish,     // of a stream
    kAbandoned,  // nobody will say more
    kTooSlow,    // the reader is too far behind
  };
  std::shared_ptr<ReplyState> reply;
  Kind kind = Kind::kFinish;
  std::string chunk = {};
  std::unique_ptr<HttpAnswer> answer = {};
};

// Messages to one I/O thread. Thread-safe. It outlives the thread: then it takes nothing.
class LoopInbox {
 public:
  // `wake` makes the thread call take() soon; called from any thread, never after close().
  explicit LoopInbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Both false after close(). The thread is woken only if it does not know yet of others.
  bool push(ReplyMessage message);
  bool push_all(std::vector<ReplyMessage>& messages);  // leaves it empty
  // What has come since, into `messages`, which is empty.
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

  // Claims the step from one phase to the next; throws kInternal when it is another's turn.
  void advance(Phase from, Phase to);
  // Counts bytes of a stream that the client has not taken. kTooMuch, once: now it counts as gone,
  // and the connection has to be told.
  enum class Room : uint8_t { kTaken, kTooMuch, kGone };
  [[nodiscard]] Room reserve(size_t bytes);
  // The client is not there any more: calls back, the first time, unless all was said before.
  void go();
  void set_on_gone(std::function<void()> callback);
  // The answer is complete: nothing is called back any more.
  void forget_callback();

  const std::shared_ptr<LoopInbox> inbox;
  const size_t most_stream_bytes;
  std::atomic<Phase> phase{Phase::kWaiting};
  std::atomic<bool> is_gone{false};
  // Of a stream: handed over, not yet taken by the socket. For a moment below zero when bytes from
  // before the stream are written.
  std::atomic<int64_t> waiting_bytes{0};
  std::atomic<int64_t> large_bytes{0};   // of these, pieces that alone are more than the most
  HttpConnection* connection = nullptr;  // of the I/O thread alone; null once they have parted

 private:
  std::mutex mutex_;
  bool has_gone_ = false;
  std::function<void()> on_gone_;
};

}  // namespace spillway
