// SPDX-License-Identifier: Apache-2.0
// Runs requests through an engine to their end. Tokens are sampled, so that a wrong bit shows.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/generation/tiny_models.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {

struct Lengths {
  int prompt, answer;
};

struct Outcome {
  std::vector<std::vector<TokenId>> answers;
  EngineStats stats;
};

inline Outcome answer_all(PlacedModel& placed, const EngineOptions& options,
                          const std::vector<Lengths>& lengths) {
  Engine engine(*placed.decoder, *placed.kv, nullptr, options);
  std::map<RequestId, size_t> indices;
  Outcome outcome;
  outcome.answers.resize(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    GenerationRequest request;
    request.prompt = testing_models::tiny_prompt(lengths[i].prompt, static_cast<uint32_t>(i + 1));
    request.max_tokens = lengths[i].answer;
    request.sampling.temperature = 1;
    request.sampling.seed = i;
    indices[engine.submit(std::move(request))] = i;
  }
  const auto sink = [&](const GenerationEvent& event) {
    EXPECT_EQ(event.error, "");
    if (event.token) outcome.answers[indices.at(event.id)].push_back(*event.token);
  };
  while (engine.step(sink)) {
    if (engine.stats().steps > 2000) {
      ADD_FAILURE() << "the engine does not come to an end";
      break;
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(outcome.answers[i].size(), static_cast<size_t>(lengths[i].answer));
  }
  outcome.stats = engine.stats();
  return outcome;
}

}  // namespace spillway::placement
