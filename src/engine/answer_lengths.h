// SPDX-License-Identifier: Apache-2.0
// Predicts how long an engine's answers will be, and learns from those that ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/generation.h"
#include "predict/online_trainer.h"

namespace spillway {

// Keeps a predictor, which is asked before a request waits and trained on a thread of its own with
// the answers that end. Thread-safe.
class AnswerLengths {
 public:
  // The predictor is saved in `file` now and then and at the end, together with the model's name;
  // if that fails, one warning names the path. An empty path: it is not saved.
  AnswerLengths(std::unique_ptr<OnlinePredictor> predictor, const std::filesystem::path& file,
                const std::string& model);

  // Sets `request.prediction` to the predicted length of its answer, as far as that can be known,
  // and clears `request.asked`. Predicts nothing for a request that generates nothing. Takes as
  // long as a prediction takes, so it is not for the engine's thread.
  void predict(GenerationRequest& request) const;

  // Returns the tokens that answers to a prompt like `text` are expected to have on average, at
  // most `most_tokens`.
  int64_t mean_tokens(const std::string& text, int64_t most_tokens) const;

  // Learns that the answer to this request ended after `tokens` tokens. An answer that was cut off
  // at its limit would have been longer: it is learned from unless an even longer one was
  // predicted. Never waits for training.
  void ended(GenerationRequest& request, int64_t tokens, FinishReason reason);

  LengthCounts counts() const;
  // Returns the bytes of host memory that the predictor's encoder takes. All else takes a few MB.
  uint64_t network_bytes() const { return trainer_.network_bytes(); }

 private:
  bool is_untrained() const;
  OnlineTrainer trainer_;
  mutable std::atomic<int64_t> predicting_ns_ = 0;
};

}  // namespace spillway
