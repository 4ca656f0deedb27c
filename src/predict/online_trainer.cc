// SPDX-License-Identifier: Apache-2.0
#include "predict/online_trainer.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "base/thread_name.h"

namespace spillway {
namespace {

constexpr int64_t kLongestAnswer = int64_t{1} << 32;

}  // namespace

OnlineTrainer::OnlineTrainer(std::unique_ptr<OnlinePredictor> predictor,
                             OnlineTrainerOptions options)
    : options_(std::move(options)),
      predictor_(std::move(predictor)),
      buckets_(predictor_->buckets()),
      network_bytes_(predictor_->network_bytes()) {
  SPW_CHECK(options_.most_waiting > 0 && options_.most_kept > 0 && options_.replays >= 0 &&
                options_.keep_every_s > 0,
            kInvalidArgument, "a trainer without room for an answer learns nothing");
  thread_ = std::thread([this] { run(); });
}

OnlineTrainer::~OnlineTrainer() {
  {
    const std::lock_guard lock(queue_mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

PredictedLength OnlineTrainer::predict(const LengthQuery& query) const {
  std::vector<PromptFeature> features = predictor_->look_at(query);
  const std::lock_guard lock(predictor_mutex_);
  const LengthDistribution said = predictor_->predict_from(features);
  return {said.up_to(query.most_tokens), std::move(features)};
}

void OnlineTrainer::finished(PredictedLength predicted, int64_t tokens) {
  const std::lock_guard lock(queue_mutex_);
  if (tokens <= 0 || tokens > kLongestAnswer || predicted.features.empty()) {
    ++counts_.refused;
    return;
  }
  const size_t said = predicted.distribution.likeliest(), right = buckets_.bucket_of(tokens);
  ++(said == right ? counts_.right : said > right ? counts_.over : counts_.under);
  counts_.predicted_tokens += predicted.distribution.mean();
  counts_.real_tokens += static_cast<double>(tokens);
  if (waiting_.size() >= options_.most_waiting) {
    ++counts_.dropped;
    return;
  }
  waiting_.push_back({std::move(predicted.features), tokens});
  changed_.notify_all();
}

void OnlineTrainer::run() {
  name_this_thread("lengths");
  const std::chrono::duration<double> keep_every(options_.keep_every_s);
  Stopwatch since_kept;
  std::unique_lock lock(queue_mutex_);
  while (true) {
    changed_.wait_for(lock, keep_every, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) break;
    if (!waiting_.empty()) {
      Answer answer = std::move(waiting_.front());
      waiting_.pop_front();
      is_learning_ = true;
      lock.unlock();
      const Stopwatch watch;
      learn(std::move(answer));
      lock.lock();
      is_learning_ = false;
      ++counts_.learned;
      counts_.learning_s += watch.seconds();
      changed_.notify_all();
    }
    if (since_kept.seconds() < options_.keep_every_s) continue;
    lock.unlock();
    keep();
    since_kept = {};
    lock.lock();
  }
  lock.unlock();
  keep();
}

// Saves a copy, so that predict() does not wait while a file is written.
void OnlineTrainer::keep() {
  if (!options_.keep || unsaved_ < options_.worth_keeping) return;
  options_.keep(*copy());
  unsaved_ = 0;
}

// Asks the predictor in its present state: what it predicted when the request came may be from
// before a shift.
void OnlineTrainer::notice_shift(const Answer& answer) {
  const size_t bucket = buckets_.bucket_of(answer.tokens);
  std::optional<size_t> noticed;
  {
    const std::lock_guard lock(predictor_mutex_);
    noticed = watch_.try_notice(predictor_->predict_from(answer.features).share(bucket), bucket);
    if (noticed) predictor_->forget_half();
  }
  if (!noticed) return;
  const size_t before = kept_.size() - std::min(kept_.size(), *noticed - 1);
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(before));
  {
    const std::lock_guard lock(queue_mutex_);
    ++counts_.shifts;
  }
  log_info(
      "lengths of answers: the last {} are of another kind than those before; half of what "
      "was learned is forgotten",
      *noticed);
}

// Takes the lock for each example separately, so that predict() waits for one example at most.
void OnlineTrainer::learn(Answer answer) {
  const auto learn_one = [&](const Answer& one) {
    const std::lock_guard lock(predictor_mutex_);
    predictor_->learn_from(one.features, one.tokens);
  };
  notice_shift(answer);
  learn_one(answer);
  ++unsaved_;
  if (kept_.size() == options_.most_kept) kept_.pop_front();
  kept_.push_back(std::move(answer));
  for (int i = 0; i < options_.replays; ++i) learn_one(kept_[random_() % kept_.size()]);
}

void OnlineTrainer::wait_until_learned() {
  std::unique_lock lock(queue_mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !is_learning_; });
}

std::unique_ptr<OnlinePredictor> OnlineTrainer::copy() const {
  const std::lock_guard lock(predictor_mutex_);
  return predictor_->copy();
}

uint64_t OnlineTrainer::examples() const {
  const std::lock_guard lock(predictor_mutex_);
  return predictor_->examples();
}

OnlineTrainerCounts OnlineTrainer::counts() const {
  const std::lock_guard lock(queue_mutex_);
  OnlineTrainerCounts counts = counts_;
  counts.waiting = waiting_.size();
  return counts;
}

}  // namespace spillway
