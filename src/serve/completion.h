// SPDX-License-Identifier: Apache-2.0
// One OpenAI request: makes the engine's requests from its prompts, and its choices from the
// engine's events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "serve/openai_request.h"
#include "serve/openai_response.h"
#include "serve/served_model.h"

namespace spillway {

// The model must outlive it. Not thread-safe.
class Completion {
 public:
  // `default_seed` is for requests without one. Throws ApiError(400) as ServedModel::encode() does.
  Completion(OpenAiRequest request, const ServedModel& model, uint64_t default_seed);

  // Returns the request without its prompts, messages and tools.
  const OpenAiRequest& request() const { return request_; }
  // Returns the requests for the engine, one for each choice in order; empty if there is nothing to
  // compute. Called once.
  std::vector<GenerationRequest> take_generations() { return std::move(generations_); }

  // Adds an event to choice `index`; returns true if it was the last event of all choices.
  bool add(size_t index, const GenerationEvent& event);
  const Choice& choice(size_t index) const { return choices_[index]; }
  size_t choices() const { return choices_.size(); }
  // Returns the first choice that ended with an error, or null.
  const Choice* failed() const;

  Usage usage() const;
  nlohmann::ordered_json body(const AnswerHead& head, const Usage& usage) const;

 private:
  OpenAiRequest request_;
  const ServedModel* model_;
  std::vector<GenerationRequest> generations_;
  std::vector<Choice> choices_;
  size_t ended_ = 0;
  size_t prompt_tokens_ = 0;
};

}  // namespace spillway
