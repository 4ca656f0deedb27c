// SPDX-License-Identifier: Apache-2.0
// Answers chats with a model that is loaded here.
#pragma once

#include <string>
#include <vector>

#include "cli/answer_source.h"
#include "cli/chat_encoder.h"
#include "engine/engine_client.h"
#include "engine/sampling_params.h"

namespace spillway {

class EngineSource : public AnswerSource {
 public:
  struct Options {
    std::string name;
    int max_tokens = 1024;  // limit of an answer
    SamplingParams sampling;
    std::vector<std::string> stop;
  };

  // `engine` must outlive it.
  EngineSource(EngineClient& engine, ChatEncoder encoder, Options options);

  std::string name() const override { return options_.name; }
  bool supports_system_role() const override { return encoder_.supports_system_role(); }
  std::string_view way_to_more_context() const override { return "--ctx gives more"; }
  ChatAnswer answer(Conversation& conversation, const AnswerListener& listener) override;

 private:
  std::vector<TokenId> make_prompt(Conversation& conversation,
                                   const AnswerListener& listener) const;

  EngineClient& engine_;
  ChatEncoder encoder_;
  Options options_;
};

}  // namespace spillway
