// SPDX-License-Identifier: Apache-2.0
// Policies of those who know how long answers will be, more or less (S3, section 3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "schedule/policies.h"

namespace spillway {

// Tokens of a sequence when it ends, as far as anything predicts them; more than it has.
int64_t predicted_end(const SequenceView& sequence);

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

// Who went beyond what it was promised gives way before those that keep to it, and of each kind the
// one that has most to come. The oldest is spared, so that it is sure to end.
class OutgrownGivesWay : public VictimChoice {
 public:
  size_t choose(std::span<const SequenceView> running) const override;
};

}  // namespace spillway
