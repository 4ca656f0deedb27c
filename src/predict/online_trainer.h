// SPDX-License-Identifier: Apache-2.0
// A predictor that many threads ask and that learns from answers as they end, beside them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "predict/online_predictor.h"
#include "predict/predicted_length.h"
#include "predict/shift_watch.h"

namespace spillway {

struct OnlineTrainerOptions {
  size_t most_waiting = 1024;  // answers to be learned from; more are dropped
  // The last answers are learned from again, each time with some of them.
  size_t most_kept = 512;
  static constexpr int kUsualReplays = 4;
  int replays = kUsualReplays;
  // Called by the trainer's thread with what it has learned since the last time: as often as this
  // where there is something new, and at the end. It does not throw.
  std::function<void(const OnlinePredictor&)> keep = {};
  double keep_every_s = 60;
  uint64_t worth_keeping = 16;  // answers: for fewer it is not called
};

struct OnlineTrainerCounts {
  uint64_t learned = 0;
  uint64_t dropped = 0;  // too many were waiting
  uint64_t refused = 0;  // no answer has such a length
  uint64_t waiting = 0;  // now
  // Of the answers that came back: the likeliest bucket was right, too long, too short.
  uint64_t right = 0, over = 0, under = 0;
  double predicted_tokens = 0, real_tokens = 0;  // of these answers: means that were said
  uint64_t shifts = 0;                           // answers became of another kind
  double learning_s = 0;                         // of the trainer's thread
};

// Owns a thread, which learns; it ends with the destructor, whatever still waits. Memory is bounded
// by the options, and nobody who asks or tells ever waits for more than one example to be learned
// (or for the predictor to forget half, which takes a millisecond). Where answers become of another
// kind the predictor does that, and what is kept of those before is dropped: learned from again and
// again they would keep it from knowing the new ones. Thread-safe.
class OnlineTrainer {
 public:
  explicit OnlineTrainer(std::unique_ptr<OnlinePredictor> predictor,
                         OnlineTrainerOptions options = {});
  ~OnlineTrainer();
  OnlineTrainer(const OnlineTrainer&) = delete;
  OnlineTrainer& operator=(const OnlineTrainer&) = delete;

  PredictedLength predict(const LengthQuery& query) const;
  // An answer ended by itself, with so many tokens. Never waits for training.
  void finished(PredictedLength predicted, int64_t tokens);

  // Returns once all that waited is learned.
  void wait_until_learned();
  std::unique_ptr<OnlinePredictor> copy() const;
  uint64_t examples() const;  // that the predictor learned from, also before it came here
  OnlineTrainerCounts counts() const;
  uint64_t network_bytes() const { return network_bytes_; }  // as the predictor's

 private:
  struct Answer {
    std::vector<PromptFeature> features;
    int64_t tokens = 0;
  };
  void run();
  void learn(Answer answer);
  void notice_shift(const Answer& answer);
  void keep();

  OnlineTrainerOptions options_;
  mutable std::mutex predictor_mutex_;
  std::unique_ptr<OnlinePredictor> predictor_;
  // The predictor's, which stay as they are.
  LengthBuckets buckets_;
  uint64_t network_bytes_;
  // The thread's own.
  std::deque<Answer> kept_;  // the last ones
  ShiftWatch watch_;
  std::mt19937 random_{1};
  uint64_t unsaved_ = 0;  // answers

  mutable std::mutex queue_mutex_;
  std::condition_variable changed_;
  std::deque<Answer> waiting_;
  OnlineTrainerCounts counts_;
  bool is_learning_ = false;
  bool ends_ = false;
  std::thread thread_;  // the last: it uses all others
};

}  // namespace spillway
