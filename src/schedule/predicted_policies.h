// SPDX-License-Identifier: Apache-2.0
// Scheduling policies that use predictions of answer lengths (S3, section 3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "schedule/policies.h"

namespace spillway {

// The tokens of a sequence when it ends, as far as they are predicted; more than it has now.
int64_t predicted_end(const SequenceView& sequence);

// Orders requests by answer length, the shortest first, which minimizes the mean wait. Each request
// that begins adds a part of a mean answer to those that arrive later, so that none waits for ever:
// a request with an answer of n mean lengths is overtaken by about n * `patience` others. Each
// level of priority halves or doubles an answer.
class ShortestPredictedFirst : public QueueOrder {
 public:
  explicit ShortestPredictedFirst(double patience = 28) : patience_(patience) {}
  Rank rank(const SequenceView& arriving) override;
  void began(double rank) override;

 private:
  double patience_;
  double clock_ = 0;
  double mean_ = 0;  // mean answer, as far as known
};

enum class Packing {
  // All sequences must fit together at their final lengths (S3).
  kSum,
  // The sequences that are still there must fit at any time. Sequences end at different times, so
  // more of them fit.
  kPeak,
};

// The blocks that these sequences need when they hold most, if all begin now and grow by a token a
// step until their predicted ends.
int64_t peak_blocks(std::span<const SequenceView> sequences);

struct PredictedAdmissionOptions {
  AdmissionPolicy policy = {};
  Packing packing = Packing::kPeak;
  int max_overtaking = 256;  // see Admission
  // Room that kPeak leaves for answers that are longer than predicted: this many standard
  // deviations of all tokens to come. The deviation of a sequence is its predicted remaining
  // length, or less if its request cannot become that much longer.
  double spare = 0;
};

// Admits requests for which the forecast has room. A request without a prediction counts with its
// prompt and the mean answer.
class PredictedAdmission : public PlannedAdmission {
 public:
  explicit PredictedAdmission(const PredictedAdmissionOptions& options)
      : PlannedAdmission(options.policy), options_(options) {}

  std::unique_ptr<RoomForecast> forecast(std::span<const SequenceView> running,
                                         int64_t blocks) const override;
  int max_overtaking() const override { return options_.max_overtaking; }

 private:
  PredictedAdmissionOptions options_;
};

// Preempts a sequence that exceeded its prediction before those that keep to it, and of each kind
// the one with most tokens to come. The oldest is spared, so that it is sure to end.
class PreemptExceeded : public PreemptionPolicy {
 public:
  size_t choose(std::span<const SequenceView> running) const override;
};

}  // namespace spillway
