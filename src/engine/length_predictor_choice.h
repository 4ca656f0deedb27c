// SPDX-License-Identifier: Apache-2.0
// Makes the length predictor that a name on the command line means.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/answer_lengths.h"
#include "predict/encoder_predictor.h"

namespace spillway {

// Names that --length-predictor takes besides `mean`, files and folders; and the predictor's file
// in an encoder's folder.
inline constexpr const char* kBuiltInLengths = "auto";
inline constexpr const char* kNoLengths = "off";
inline constexpr const char* kTrainedInFolder = "lengths.predictor";

// Makes the predictor that `choice` means. auto: the built-in one, with what it learned before of
// this model, which is kept in the cache folder. mean: the mean of the answers before, whatever the
// prompt. A folder: an encoder, with what was learned before of this model and it, or else with the
// file kTrainedInFolder in it; it is kept like that of auto. Otherwise a file of `spillway
// predictor train`, which stays as it is. off: null. A damaged file gives a warning with its path,
// and a fresh predictor is used; a missing one, or one whose encoder has changed, throws
// kInvalidArgument. `model` is what resolve_model() returned, `most_tokens` the most that an answer
// may have.
std::unique_ptr<AnswerLengths> make_answer_lengths(const std::string& choice,
                                                   const std::string& model, int64_t most_tokens,
                                                   const EncoderOpener& open_encoder);

}  // namespace spillway
