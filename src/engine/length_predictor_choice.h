// SPDX-License-Identifier: Apache-2.0
// Which predictor of lengths a name on the command line means.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/answer_lengths.h"
#include "predict/encoder_predictor.h"

namespace spillway {

// What --length-predictor takes besides files and folders.
inline constexpr const char* kBuiltInLengths = "auto";
inline constexpr const char* kNoLengths = "off";
inline constexpr const char* kTrainedInFolder = "lengths.predictor";

// auto: the built-in one, with what it learned before of this model, which is kept in the cache
// folder. mean: as the answers before, whatever is asked. A folder: an encoder, with what was
// learned before of this model and it, or else with the file kTrainedInFolder that lies in it; kept
// as that of auto. Else a file of `spillway predictor train`, which stays as it is. off: null. A
// file that is damaged is a warning with its path, and a fresh one is used; one that is not there,
// or whose encoder is another one now, throws kInvalidArgument. `model` is what resolve_model()
// gave, `most_tokens` what an answer may have.
std::unique_ptr<AnswerLengths> make_answer_lengths(const std::string& choice,
                                                   const std::string& model, int64_t most_tokens,
                                                   const EncoderOpener& open_encoder);

}  // namespace spillway
