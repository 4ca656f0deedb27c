// SPDX-License-Identifier: Apache-2.0
// Predicts the lengths of a batch job's answers, for planning.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/answer_lengths.h"
#include "serve/batch_input.h"

namespace spillway {

// Returns four answer lengths in tokens, ascending, one for each quarter of the answers; empty if
// no line is a request. Samples the lines of a long file. The lengths are rounded, so that the plan
// of a resumed job does not change with each answer that the predictor learns from.
std::vector<int64_t> predicted_answers(const BatchInput& input, const AnswerLengths& lengths,
                                       int64_t most_tokens);

}  // namespace spillway
