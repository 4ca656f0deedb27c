// SPDX-License-Identifier: Apache-2.0
// Opens the encoder that a command line names: a folder, computed by this machine's CPU.
#pragma once

#include <filesystem>
#include <memory>

#include "predict/encoder_weights.h"
#include "predict/transformer_encoder.h"

namespace spillway {

// Throws what TransformerEncoder's constructor throws.
std::shared_ptr<const TransformerEncoder> open_encoder(
    const std::filesystem::path& folder, EncoderPrecision precision = EncoderPrecision::kFast);

// Opens it as an EncoderOpener for length predictors.
std::shared_ptr<const PromptEncoder> open_any_encoder(const std::filesystem::path& folder);

}  // namespace spillway
