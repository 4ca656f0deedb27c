// SPDX-License-Identifier: Apache-2.0
// What a prompt looks like to a linear model: words, pieces of words and lengths, hashed into
// slots.
#pragma once

#include <cstdint>
#include <vector>

#include "predict/length_predictor.h"

namespace spillway {

struct PromptFeature {
  uint32_t slot = 0;
  float value = 0;
};

// Slots of prompt_features() are below this. What does not share a slot with something else is
// told apart: a prompt has some 150 of them.
inline constexpr uint32_t kFeatureSlots = 1U << 15;

// Looks closely at the first line, which mostly says what is wanted, at single words of the rest,
// and at how long both are; never at more than a bounded part of a long prompt. A slot may come
// more than once.
std::vector<PromptFeature> prompt_features(const LengthQuery& query);

}  // namespace spillway
