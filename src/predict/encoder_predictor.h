// SPDX-License-Identifier: Apache-2.0
// The second predictor: what a transformer encoder makes of a prompt beside its words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "predict/ngram_predictor.h"
#include "predict/online_predictor.h"
#include "predict/predictor_file.h"
#include "predict/prompt_encoder.h"

namespace spillway {

// Sees what NgramPredictor sees and, of prompts with text, the embedding; a table of weights for
// both learns from answers as that one's does. The encoder stays as it is.
class EncoderPredictor final : public OnlinePredictor {
 public:
  EncoderPredictor(const LengthBuckets& buckets, std::shared_ptr<const PromptEncoder> encoder);
  // With what was learned before. Throws kInvalidArgument where that was from another encoder's
  // embeddings.
  EncoderPredictor(StoredPredictor stored, std::shared_ptr<const PromptEncoder> encoder);

  std::vector<PromptFeature> look_at(const LengthQuery& query) const override;
  LengthDistribution predict_from(std::span<const PromptFeature> seen) const override {
    return table_.predict_from(seen);
  }
  void learn_from(std::span<const PromptFeature> seen, int64_t tokens) override {
    table_.learn_from(seen, tokens);
  }
  void forget_half() override { table_.forget_half(); }

  const LengthBuckets& buckets() const override { return table_.buckets(); }
  uint64_t examples() const override { return table_.examples(); }
  std::unique_ptr<OnlinePredictor> copy() const override {
    return std::make_unique<EncoderPredictor>(*this);
  }
  uint64_t network_bytes() const override { return encoder_->memory_bytes(); }
  [[nodiscard]] bool try_write(const std::filesystem::path& path,
                               const std::string& model) const override;

 private:
  std::shared_ptr<const PromptEncoder> encoder_;
  NgramPredictor table_;
};

using EncoderOpener =
    std::function<std::shared_ptr<const PromptEncoder>(const std::filesystem::path& folder)>;

// The predictor that a file holds, with its encoder where it has one. Throws what opening that
// throws, and kInvalidArgument where it is not the one that was learned from.
std::unique_ptr<OnlinePredictor> predictor_of(StoredPredictor stored, const EncoderOpener& open);

}  // namespace spillway
