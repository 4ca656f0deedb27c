// SPDX-License-Identifier: Apache-2.0
// The interface of predictors that learn while serving. It separates looking at a prompt, which
// many threads may do, from predicting and learning.
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

// look_at() may take time and changes nothing: any thread may call it, beside all other calls. The
// other functions are quick and are for one thread at a time (OnlineTrainer sees to that). The
// features that look_at() returned are all that learning needs of a prompt.
class OnlinePredictor : public LengthPredictor {
 public:
  virtual std::vector<PromptFeature> look_at(const LengthQuery& query) const = 0;
  virtual LengthDistribution predict_from(std::span<const PromptFeature> seen) const = 0;
  virtual void learn_from(std::span<const PromptFeature> seen, int64_t tokens) = 0;
  // Adapts to answers that have become of another kind: what was learned counts half, and new
  // answers are learned as fast as at first.
  virtual void forget_half() = 0;

  virtual const LengthBuckets& buckets() const = 0;
  virtual uint64_t examples() const = 0;  // how many it learned from, counting repetitions
  virtual std::unique_ptr<OnlinePredictor> copy() const = 0;
  // Host memory that the predictor's network takes, which plans must count. Tables of a few MB are
  // not counted.
  virtual uint64_t network_bytes() const { return 0; }
  // Saves what it learned to this path, all or nothing; `model` names the model whose answers these
  // are. Returns false if there is nothing to save. Throws kIo.
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
