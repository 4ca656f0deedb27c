// SPDX-License-Identifier: Apache-2.0
// A predictor in two parts, so that it can be asked by many and learn beside them: what it sees of
// a prompt, and what it says of that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "predict/length_predictor.h"
#include "predict/prompt_features.h"

namespace spillway {

// Looking at a prompt may take time and changes nothing: any thread may, beside all others. The
// rest is quick, and for one thread at a time (OnlineTrainer sees to that). What was seen is all
// that learning needs of a prompt.
class OnlinePredictor : public LengthPredictor {
 public:
  virtual std::vector<PromptFeature> look_at(const LengthQuery& query) const = 0;
  virtual LengthDistribution predict_from(std::span<const PromptFeature> seen) const = 0;
  virtual void learn_from(std::span<const PromptFeature> seen, int64_t tokens) = 0;
  // Answers are of another kind now: what was learned counts half, and what comes is learned as
  // fast as at first.
  virtual void forget_half() = 0;

  virtual const LengthBuckets& buckets() const = 0;
  virtual uint64_t examples() const = 0;  // that it learned from, again and again
  virtual std::unique_ptr<OnlinePredictor> copy() const = 0;
  // Of the host's memory, what a network in it takes: what plans must know. Tables of a few MB are
  // the program's own.
  virtual uint64_t network_bytes() const { return 0; }
  // Keeps what it learned under this path, all or nothing; `model`: whose answers these are. False
  // where there is nothing to keep. Throws kIo.
  [[nodiscard]] virtual bool try_write(const std::filesystem::path& /*path*/,
                                       const std::string& /*model*/) const {
    return false;
  }

  LengthDistribution predict(const LengthQuery& query) const override {
    return predict_from(look_at(query)).up_to(query.most_tokens);
  }
  void learn(const LengthQuery& query, int64_t tokens) override {
    learn_from(look_at(query), tokens);
  }
};

}  // namespace spillway
