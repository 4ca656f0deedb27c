// SPDX-License-Identifier: Apache-2.0
// How long the answers of a batch job will be, before any of them is there: what it is planned for.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/answer_lengths.h"
#include "serve/batch_input.h"

namespace spillway {

// Tokens of answers, ascending, each of a quarter of the requests; empty where no line is a
// request. Looks at some of the lines of a long file. Rounded, so that a plan does not change with
// each answer that a predictor learns from: jobs begin again.
std::vector<int64_t> predicted_answers(const BatchInput& input, const AnswerLengths& lengths,
                                       int64_t most_tokens);

}  // namespace spillway
