// SPDX-License-Identifier: Apache-2.0
// How long an engine's answers will be: asked before a request waits, told when its answer ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/generation.h"
#include "predict/online_trainer.h"

namespace spillway {

// Keeps a predictor and learns from what ends, on a thread of its own. Thread-safe.
class AnswerLengths {
 public:
  // What it learns is kept in `file` now and then and at the end, beside the model's name; where
  // that fails there is a warning with the path, once. An empty path: nowhere.
  AnswerLengths(std::unique_ptr<OnlinePredictor> predictor, const std::filesystem::path& file,
                const std::string& model);

  // The request knows its answer's length from now on, as far as anybody does; its text goes.
  // Where nothing is drawn, nothing is said. Takes what a prediction takes: not for the engine's
  // thread.
  void foresee(GenerationRequest& request) const;

  // Tokens that answers to such a text have on average, of at most so many.
  int64_t mean_tokens(const std::string& text, int64_t most_tokens) const;

  // The answer to such a request ended with so many tokens. One that was cut off at its limit would
  // have been longer: it teaches unless even longer ones are predicted. Never waits for training.
  void ended(GenerationRequest& request, int64_t tokens, FinishReason reason);

  LengthCounts counts() const;
  // Of the host's memory, what predicting takes beside a few MB: that of an encoder.
  uint64_t network_bytes() const { return trainer_.network_bytes(); }

 private:
  bool knows_nothing() const;
  OnlineTrainer trainer_;
  mutable std::atomic<int64_t> predicting_ns_ = 0;
};

}  // namespace spillway
