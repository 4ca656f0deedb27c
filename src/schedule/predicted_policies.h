// SPDX-License-Identifier: Apache-2.0
// Policies of those who know how long answers will be, more or less (S3, section 3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "schedule/policies.h"

namespace spillway {

// The longest first, so that short ones find room beside them: decreasing first fit. Those that
// came before the last `window` requests go before all that came later.
class LongestPredictedFirst : public QueueOrder {
 public:
  explicit LongestPredictedFirst(int window = 256) : window_(window) {}
  Rank rank(const SequenceView& arriving) override;

 private:
  int window_;
  int64_t arrivals_ = 0;
};

// The shortest answer first: the mean wait is then the least. Each request that begins makes those
// that come later longer by a part of a mean answer, so that nobody waits for ever: an answer of
// n mean lengths lets about n * `patience` others pass. A priority halves or doubles an answer.
class ShortestPredictedFirst : public QueueOrder {
 public:
  explicit ShortestPredictedFirst(double patience = 28) : patience_(patience) {}
  Rank rank(const SequenceView& arriving) override;
  void began(double rank) override;

 private:
  double patience_;
  double clock_ = 0;
  double mean_ = 0;  // as far as anybody knows
};

enum class Packing {
  // What all have in the end must fit at once (S3).
  kSum,
  // At no time may those that are still there hold more than there is. Sequences end at different
  // times, so that more of them fit.
  kPeak,
};

// Blocks that these need at the time when they hold most, were all to begin now and to grow by a
// token a step until they end as predicted.
int64_t peak_blocks(std::span<const SequenceView> sequences);

struct PredictedAdmissionOptions {
  AdmissionPolicy policy = {};
  Packing packing = Packing::kPeak;
  int most_passing = 256;  // see Admission
  // Room that kPeak leaves for answers that are longer than predicted. What is to come is as unsure
  // as it is long, as far as a request may be longer at all: this many standard deviations of all.
  double spare = 0;
};

// Begins what the forecast has room for. What is not predicted counts as what it has and the mean
// answer.
class PredictedAdmission : public PlannedAdmission {
 public:
  explicit PredictedAdmission(const PredictedAdmissionOptions& options)
      : PlannedAdmission(options.policy), options_(options) {}

  std::unique_ptr<RoomForecast> forecast(std::span<const SequenceView> running,
                                         int64_t blocks) const override;
  int most_passing() const override { return options_.most_passing; }

 private:
  PredictedAdmissionOptions options_;
};

// As another admission, with no more sequences at once than generate a token in `token_s` (S3,
// section 4.1: who reads is not faster). What steps take is what tells it; it begins with few.
class PacedAdmission : public Admission {
 public:
  static constexpr double kReadingSpeed = 0.1875;  // seconds a token

  explicit PacedAdmission(std::unique_ptr<Admission> inner, double token_s = kReadingSpeed);

  // A step of so many sequences, none of which had a prompt, took so long.
  void stepped(int sequences, double seconds);

  int max_sequences() const override;
  int most_newcomers(const AdmissionState& state) const override {
    return inner_->most_newcomers(state);
  }
  bool prompts_first() const override { return inner_->prompts_first(); }
  void began(int newcomers, bool full, int running_before) override {
    inner_->began(newcomers, full, running_before);
  }
  std::unique_ptr<RoomForecast> forecast(std::span<const SequenceView> running,
                                         int64_t blocks) const override {
    return inner_->forecast(running, blocks);
  }
  int most_passing() const override { return inner_->most_passing(); }

 private:
  static constexpr int kFirstSequences = 16;
  std::unique_ptr<Admission> inner_;
  double token_s_;
  double limit_;  // sequences
};

// Who went beyond what it was promised gives way before those that keep to it, and of each kind the
// one that has most to come. The oldest is spared, so that it is sure to end.
class OutgrownGivesWay : public VictimChoice {
 public:
  size_t choose(std::span<const SequenceView> running) const override;
};

}  // namespace spillway
