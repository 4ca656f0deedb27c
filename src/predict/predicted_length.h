// SPDX-License-Identifier: Apache-2.0
// A predicted answer length with the features that it was predicted from.
#pragma once

#include <vector>

#include "predict/length_buckets.h"
#include "predict/prompt_features.h"

namespace spillway {

// Travels with a request and comes back to the trainer with the answer's real length.
struct PredictedLength {
  LengthDistribution distribution;
  std::vector<PromptFeature> features;
};

}  // namespace spillway
