// SPDX-License-Identifier: Apache-2.0
// A BERT-like encoder from a Hugging Face folder, run by a device's own kernels.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "predict/encoder_spec.h"
#include "predict/encoder_weights.h"
#include "predict/prompt_encoder.h"
#include "text/word_piece.h"

namespace spillway {

// Only the first tokens of a longer prompt are read: they mostly say what is wanted, and a
// prediction stays within a few milliseconds.
inline constexpr size_t kMostEncoderTokens = 64;

// Its embedding is the mean of the last layer's output over all tokens, scaled to length 1. Owns
// the device. Thread-safe: one call computes at a time, others wait.
class TransformerEncoder final : public PromptEncoder {
 public:
  // The host must see the memory of `device`. Throws kInvalidArgument for a folder that lacks
  // something or is damaged, kUnsupported for other architectures and tokenizers.
  TransformerEncoder(std::unique_ptr<Device> device, const std::filesystem::path& folder,
                     EncoderPrecision precision = EncoderPrecision::kFast);
  ~TransformerEncoder() override;

  int64_t dimensions() const override { return spec_.width; }
  std::vector<float> embed(std::string_view text) const override;
  const std::string& digest() const override { return digest_; }
  const std::filesystem::path& folder() const override { return folder_; }
  uint64_t memory_bytes() const override { return memory_bytes_; }

  // Returns the tokens that embed() reads.
  std::vector<TokenId> tokens_of(std::string_view text) const;

 private:
  struct Scratch;
  void run_layers(int64_t tokens) const;

  std::filesystem::path folder_;
  EncoderSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<const WordPiece> pieces_;
  std::unique_ptr<const EncoderWeights> weights_;
  std::unique_ptr<Scratch> scratch_;
  std::string digest_;
  uint64_t memory_bytes_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace spillway
