// SPDX-License-Identifier: Apache-2.0
// Shares a length predictor among threads and trains it in the background as answers end.
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
  size_t most_waiting = 1024;  // answers in the queue for learning; more are dropped
  // With each answer, some of the last `most_kept` answers are learned from again.
  size_t most_kept = 512;
  static constexpr int kUsualReplays = 4;
  int replays = kUsualReplays;
  // Saves the predictor; the trainer's thread calls it every `keep_every_s` seconds if there is
  // something new, and at the end. It must not throw.
  std::function<void(const OnlinePredictor&)> keep = {};
  double keep_every_s = 60;
  uint64_t worth_keeping = 16;  // new answers; with fewer it is not called
};

struct OnlineTrainerCounts {
  uint64_t learned = 0;
  uint64_t dropped = 0;  // the queue was full
  uint64_t refused = 0;  // answers with impossible lengths
  uint64_t waiting = 0;  // answers in the queue now
  // How the likeliest bucket compared with the real one: answers predicted right, too long, too
  // short.
  uint64_t right = 0, over = 0, under = 0;
  double predicted_tokens = 0, real_tokens = 0;  // sums over these answers, of predicted means
  uint64_t shifts = 0;                           // how often answers became of another kind
  double learning_s = 0;                         // time that the trainer's thread spent learning
};

// Owns a thread that learns; the destructor ends it without waiting for the queue. Memory is
// bounded by the options. predict() and finished() never wait for more than one example to be
// learned (or for the predictor to forget half, which takes a millisecond). When answers become of
// another kind, the predictor forgets half and the kept answers from before are dropped: learning
// from them again and again would hide the new kind. Thread-safe.
class OnlineTrainer {
 public:
  explicit OnlineTrainer(std::unique_ptr<OnlinePredictor> predictor,
                         OnlineTrainerOptions options = {});
  ~OnlineTrainer();
  OnlineTrainer(const OnlineTrainer&) = delete;
  OnlineTrainer& operator=(const OnlineTrainer&) = delete;

  PredictedLength predict(const LengthQuery& query) const;
  // Takes the length of an answer that ended by itself. Never waits for training.
  void finished(PredictedLength predicted, int64_t tokens);

  // Returns once the queue is empty and all in it is learned.
  void wait_until_learned();
  std::unique_ptr<OnlinePredictor> copy() const;
  uint64_t examples() const;  // how many the predictor learned from, also before it came here
  OnlineTrainerCounts counts() const;
  uint64_t network_bytes() const { return network_bytes_; }  // of the predictor

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
  // Copies of the predictor's constants.
  LengthBuckets buckets_;
  uint64_t network_bytes_;
  // Used by the trainer's thread alone.
  std::deque<Answer> kept_;  // the last answers, to be learned from again
  ShiftWatch watch_;
  std::mt19937 random_{1};
  uint64_t unsaved_ = 0;  // answers learned since the last save

  mutable std::mutex queue_mutex_;
  std::condition_variable changed_;
  std::deque<Answer> waiting_;
  OnlineTrainerCounts counts_;
  bool is_learning_ = false;
  bool ends_ = false;
  std::thread thread_;  // declared last because it uses all other members
};

}  // namespace spillway
