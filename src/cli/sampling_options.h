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
  // As given; what was not is the command's default, or what the model suggests.
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

  // `defaults` are for --help.
  void add_to(Command& command, const SamplingParams& defaults);
  // `defaults` with what was given in their place; the seed stays. Throws kInvalidArgument for what
  // is not sound by itself.
  SamplingParams over(SamplingParams defaults) const;
  // The given one, or one that is drawn. Throws kInvalidArgument for what is no seed.
  uint64_t choose_seed() const;
};

}  // namespace spillway
