// SPDX-License-Identifier: Apache-2.0
// The encoder that a command line names: a folder, computed by this machine's processor.
#pragma once

#include <filesystem>
#include <memory>

#include "predict/encoder_weights.h"
#include "predict/transformer_encoder.h"

namespace spillway {

// Throws as TransformerEncoder does.
std::shared_ptr<const TransformerEncoder> open_encoder(
    const std::filesystem::path& folder, EncoderPrecision precision = EncoderPrecision::kFast);

// The same as whoever predicts lengths wants it (EncoderOpener).
std::shared_ptr<const PromptEncoder> open_any_encoder(const std::filesystem::path& folder);

}  // namespace spillway
