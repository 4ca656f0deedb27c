// SPDX-License-Identifier: Apache-2.0
// Policies that S3 uses and the product does not have: decreasing first fit, and a limit on the
// token rate.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "schedule/policies.h"

namespace spillway {

// Admits the longest predicted request first, so that short ones find room beside it: decreasing
// first fit. Each `window` requests that came together are admitted before all later ones.
class LongestPredictedFirst : public QueueOrder {
 public:
  explicit LongestPredictedFirst(int window = 256) : window_(window) {}
  Rank rank(const SequenceView& arriving) override;

 private:
  int window_;
  int64_t arrivals_ = 0;
};

// Another admission policy, limited to as many concurrent sequences as generate a token each within
// `token_s` (S3, section 4.1: people do not read faster). The limit starts low and follows the
// measured times of steps.
class PacedAdmission : public Admission {
 public:
  PacedAdmission(std::unique_ptr<Admission> inner, double token_s);

  // Reports that a step of so many sequences, none with a prompt, took so long.
  void stepped(int sequences, double seconds);

  int max_sequences() const override;
  int max_admissions(const AdmissionState& state) const override {
    return inner_->max_admissions(state);
  }
  bool prompts_first() const override { return inner_->prompts_first(); }
  void began(int admissions, bool full, int running_before) override {
    inner_->began(admissions, full, running_before);
  }
  std::unique_ptr<RoomForecast> forecast(std::span<const SequenceView> running,
                                         int64_t blocks) const override {
    return inner_->forecast(running, blocks);
  }
  int max_overtaking() const override { return inner_->max_overtaking(); }

 private:
  static constexpr int kFirstSequences = 16;
  std::unique_ptr<Admission> inner_;
  double token_s_;
  double limit_;  // sequences
};

}  // namespace spillway
