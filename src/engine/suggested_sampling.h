// SPDX-License-Identifier: Apache-2.0
// The sampling parameters that a model's makers suggest in its files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/sampling_params.h"
#include "storage/metadata.h"

namespace spillway {

struct SuggestedSampling {
  std::optional<float> temperature;  // 0: the most likely token
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int> repetition_window;
  // One line, for a warning, for each suggestion that makes no sense.
  std::vector<std::string> ignored;

  void apply_to(SamplingParams& params) const;
};

// Reads generation_config.json of a Hugging Face folder, or general.sampling.* of a GGUF file.
// Never throws for what is in the files: an odd suggestion is no reason not to run a model.
SuggestedSampling suggested_sampling(const Metadata& metadata);

}  // namespace spillway
