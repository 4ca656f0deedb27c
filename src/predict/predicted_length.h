// SPDX-License-Identifier: Apache-2.0
// What was said of an answer's length, and from what.
#pragma once

#include <vector>

#include "predict/length_buckets.h"
#include "predict/prompt_features.h"

namespace spillway {

// Goes along with a request and comes back with the answer's length.
struct PredictedLength {
  LengthDistribution distribution;
  std::vector<PromptFeature> features;
};

}  // namespace spillway
