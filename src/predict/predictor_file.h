// SPDX-License-Identifier: Apache-2.0
// Saves length predictors to files and reads them, so that what they learned outlives the program.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "predict/ngram_predictor.h"

namespace spillway {

// Identifies the PromptEncoder whose embeddings a predictor has learned from.
struct EncoderMark {
  std::string digest;  // empty: it learned from no encoder
  std::filesystem::path folder;
};

// Replaces an existing file only once all is written. `model` names the model whose answers were
// learned from. Throws kIo.
void write_predictor(const std::filesystem::path& path, const NgramPredictor& predictor,
                     const std::string& model, const EncoderMark& encoder = {});

struct StoredPredictor {
  NgramPredictor predictor;
  // Both are what write_predictor() was given.
  std::string model;
  EncoderMark encoder;
};

// Returns nullopt if there is no such file. Also returns nullopt, and logs a warning with path and
// reason, if the file is damaged, foreign or of another version: the caller then uses a fresh
// predictor. Never throws for the file's contents.
[[nodiscard]] std::optional<StoredPredictor> try_read_predictor(const std::filesystem::path& path);

}  // namespace spillway
