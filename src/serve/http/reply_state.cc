// SPDX-License-Identifier: Apache-2.0
#include "serve/http/reply_state.h"

#include <exception>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace spillway {

bool LoopInbox::push(ReplyMessage message) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return false;
  messages_.push_back(std::move(message));
  if (messages_.size() == 1) wake_();
  return true;
}

bool LoopInbox::push_all(std::vector<ReplyMessage>& messages) {
  bool taken = true;
  if (!messages.empty()) {
    const std::lock_guard lock(mutex_);
    taken = is_open_;
    if (is_open_) {
      const bool was_empty = messages_.empty();
      if (was_empty) {
        messages_.swap(messages);
      } else {
        std::move(messages.begin(), messages.end(), std::back_inserter(messages_));
      }
      if (was_empty) wake_();
    }
  }
  messages.clear();  // outside the lock, since what is dropped here may push
  return taken;
}

void LoopInbox::take(std::vector<ReplyMessage>& messages) {
  const std::lock_guard lock(mutex_);
  messages_.swap(messages);
}

void LoopInbox::close() {
  std::vector<ReplyMessage> dropped;
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  dropped.swap(messages_);
}

void ReplyState::advance(Phase from, Phase to) {
  const bool is_turn = phase.compare_exchange_strong(from, to);
  SPW_CHECK(is_turn, kInternal, "a reply was used in a wrong order, or twice");
}

ReplyState::Room ReplyState::reserve(size_t bytes) {
  if (is_gone.load(std::memory_order_relaxed)) return Room::kGone;
  const auto more = static_cast<int64_t>(bytes);
  const auto most = static_cast<int64_t>(most_stream_bytes);
  const int64_t before = waiting_bytes.fetch_add(more, std::memory_order_relaxed);
  // A single chunk larger than the limit is not the reader's fault, so it may wait besides the
  // others.
  if (before <= 0) large_bytes.store(0, std::memory_order_relaxed);
  if (more > most) large_bytes.fetch_add(more, std::memory_order_relaxed);
  if (before + more <= most + large_bytes.load(std::memory_order_relaxed)) return Room::kTaken;
  return is_gone.exchange(true) ? Room::kGone : Room::kTooMuch;
}

void ReplyState::go() {
  is_gone.store(true);
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_gone_, true)) return;
    callback = std::exchange(on_gone_, nullptr);
  }
  if (!callback || phase.load() == Phase::kComplete) return;
  try {
    callback();
  } catch (const std::exception& error) {
    log_warning("http: a callback failed: {}", error.what());
  }
}

void ReplyState::set_on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_gone_) {
      on_gone_.swap(callback);
      return;
    }
  }
  callback();
}

void ReplyState::forget_callback() {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(on_gone_);
}

}  // namespace spillway
