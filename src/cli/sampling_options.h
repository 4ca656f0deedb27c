// SPDX-License-Identifier: Apache-2.0
// The sampling flags of run and chat.
#pragma once

#include <string>
#include <vector>

#include "engine/sampler.h"

namespace CLI {
class App;
}

namespace spillway {

struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  std::vector<std::string> stop;

  void add_to(CLI::App& command);
  // Throws kInvalidArgument for a logit bias that is not ID=BIAS.
  SamplingParams parse() const;
};

}  // namespace spillway
