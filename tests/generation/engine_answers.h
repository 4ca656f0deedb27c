// SPDX-License-Identifier: Apache-2.0
// Runs requests in an engine over a tiny model, and collects their answers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/logprobs.h"
#include "engine/engine.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {

struct Answer {
  std::vector<TokenId> ids;
  std::optional<FinishReason> finish;
  std::string text;
  bool operator==(const Answer&) const = default;
};

// Runs all submitted requests to their end. `between` is called before each step.
inline std::map<RequestId, Answer> run_all(
    Engine& engine, const std::function<void()>& between = [] {}) {
  std::map<RequestId, Answer> answers;
  const auto sink = [&](const GenerationEvent& event) {
    Answer& answer = answers[event.id];
    EXPECT_FALSE(answer.finish.has_value()) << "an event after the end";
    EXPECT_TRUE(event.error.empty()) << event.error;
    if (event.token) answer.ids.push_back(*event.token);
    answer.text += event.text;
    if (event.finish) answer.finish = event.finish;
  };
  const auto step = [&] {
    between();
    return engine.step(sink);
  };
  for (int steps = 0; step(); ++steps) {
    if (steps > 10'000) {
      ADD_FAILURE() << "the engine does not come to an end";
      break;
    }
  }
  return answers;
}

inline GenerationRequest make_request(int prompt_length, uint32_t seed, int max_tokens = 24,
                                      float temperature = 0) {
  GenerationRequest request;
  request.prompt = tiny_prompt(prompt_length, seed);
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

// Runs the engine, and returns the log-probabilities of each token, by request, for the requests
// that have any.
inline std::map<RequestId, std::vector<Logprobs>> run_for_logprobs(Engine& engine) {
  std::map<RequestId, std::vector<Logprobs>> found;
  const auto sink = [&](const GenerationEvent& event) {
    EXPECT_TRUE(event.error.empty()) << event.error;
    if (event.logprobs) found[event.id].push_back(*event.logprobs);
  };
  while (engine.step(sink)) {
  }
  return found;
}

// Returns requests with every kind of log-probabilities and without them, greedy and sampled, with
// and without options that change logits before a token is chosen.
inline std::vector<GenerationRequest> logprobs_requests() {
  std::vector<GenerationRequest> requests;
  for (const int logprobs : {0, -1, 1, 5, -1, kMostLogprobs}) {
    const auto n = static_cast<uint32_t>(requests.size());
    requests.push_back(make_request(10 + static_cast<int>(n), n, 20, n % 2 == 0 ? 0 : 0.9F));
    SamplingParams& sampling = requests.back().sampling;
    sampling.logprobs = logprobs;
    if (n >= 2) sampling.repetition_penalty = 1.3F;
    if (n >= 3) sampling.logit_bias = {{5, 4.0F}, {9, -100.0F}};
  }
  return requests;
}

// Returns the answer of a request that has an engine to itself.
inline Answer answer_alone(TinyRuntime& runtime, const GenerationRequest& request,
                           const Tokenizer* tokenizer = nullptr) {
  KvCache kv = runtime.make_kv(40);
  Decoder decoder = runtime.make_decoder(256);
  Engine engine(decoder, kv, tokenizer, {});
  engine.submit(request);
  return run_all(engine).begin()->second;
}

// A tokenizer for the tiny models: token n is the letter n, 0 is the end token.
inline Tokenizer letter_tokenizer() {
  Vocabulary vocabulary;
  vocabulary.model = TokenizerModel::kSentencePiece;
  for (int i = 0; i < 97; ++i) {
    VocabToken token;
    token.text =
        i == 0 ? "</s>" : std::string(1, static_cast<char>(' ' + i % 95)) + (i >= 95 ? "!" : "");
    if (i == 0) token.kind = TokenKind::kControl;
    vocabulary.tokens.push_back(token);
  }
  vocabulary.eos = 0;
  return Tokenizer(std::move(vocabulary));
}

}  // namespace spillway::testing_models
