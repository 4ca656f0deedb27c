// SPDX-License-Identifier: Apache-2.0
// The second length predictor: it adds a transformer encoder's embedding of the prompt to the
// words.
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

// Its features are those of NgramPredictor and, for prompts with text, the embedding. One table of
// weights for both learns from answers as NgramPredictor's does; the encoder is not trained.
class EncoderPredictor final : public OnlinePredictor {
 public:
  EncoderPredictor(const LengthBuckets& buckets, std::shared_ptr<const PromptEncoder> encoder);
  // Starts from what was learned before. Throws kInvalidArgument if that was learned from another
  // encoder's embeddings.
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

// Returns the predictor that a file holds, with its encoder if it has one. Throws what `open`
// throws, and kInvalidArgument if the encoder is not the one that the predictor learned from.
std::unique_ptr<OnlinePredictor> predictor_of(StoredPredictor stored, const EncoderOpener& open);

}  // namespace spillway
