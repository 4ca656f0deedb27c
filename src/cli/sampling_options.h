// SPDX-License-Identifier: Apache-2.0
// The sampling flags of run and chat.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling_params.h"

namespace spillway {

class Command;

struct SamplingOptions {
  // Flags that were not given are empty: the model's suggestion or the command's default holds.
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int> repetition_window;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  std::optional<std::string> seed;
  std::vector<std::string> stop;

  // Adds the flags; `defaults` are shown by --help.
  void add_to(Command& command, const SamplingParams& defaults);
  // Returns `defaults` with the given flags in their place; the seed is not changed. Throws
  // kInvalidArgument for values that cannot be right for any model.
  SamplingParams over(SamplingParams defaults) const;
  // Returns the given seed, or a random one. Throws kInvalidArgument for a seed that is not a
  // number.
  uint64_t choose_seed() const;
};

}  // namespace spillway
