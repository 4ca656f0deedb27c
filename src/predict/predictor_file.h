// SPDX-License-Identifier: Apache-2.0
// A predictor on disk: what it learned outlives the program.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "predict/ngram_predictor.h"

namespace spillway {

// Whose embeddings a predictor has learned from (PromptEncoder).
struct EncoderMark {
  std::string digest;  // empty: nobody's
  std::filesystem::path folder;
};

// Replaces what is there only once all is written. `model`: whose answers these are. Throws kIo.
void write_predictor(const std::filesystem::path& path, const NgramPredictor& predictor,
                     const std::string& model, const EncoderMark& encoder = {});

struct StoredPredictor {
  NgramPredictor predictor;
  // As write_predictor() was told.
  std::string model;
  EncoderMark encoder;
};

// nullopt where there is no such file, or, with a warning that has its path and what is wrong with
// it, where it is damaged, foreign or of another version: a fresh one is to be used then. Throws
// nothing for what is in the file.
[[nodiscard]] std::optional<StoredPredictor> try_read_predictor(const std::filesystem::path& path);

}  // namespace spillway
