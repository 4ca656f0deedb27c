// SPDX-License-Identifier: Apache-2.0
// Features of a prompt for a linear model: words, character n-grams and lengths, hashed into slots.
#pragma once

#include <cstdint>
#include <vector>

#include "predict/length_predictor.h"

namespace spillway {

struct PromptFeature {
  uint32_t slot = 0;
  float value = 0;
};

// Slots of prompt_features() are below this. Features that share a slot cannot be told apart; a
// prompt has some 150 of them.
inline constexpr uint32_t kFeatureSlots = 1U << 15;

// Looks closely at the first line, which mostly says what is wanted, at single words of the rest,
// and at the lengths of both; never at more than a bounded part of a long prompt. A slot may occur
// more than once.
std::vector<PromptFeature> prompt_features(const LengthQuery& query);

}  // namespace spillway
