// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/answer.h"

namespace spillway {

EngineSource::EngineSource(EngineClient& engine, ChatEncoder encoder, Options options)
    : engine_(engine), encoder_(std::move(encoder)), options_(std::move(options)) {}

// Leaves room for an answer: a quarter of the context, or max_tokens if that is less.
std::vector<TokenId> EngineSource::make_prompt(Conversation& conversation,
                                               const AnswerListener& listener) const {
  const int64_t context = engine_.max_sequence_tokens();
  const int64_t reserve = std::min<int64_t>(options_.max_tokens, context / 4);
  std::vector<TokenId> prompt = encoder_.encode(conversation);
  while (static_cast<int64_t>(prompt.size()) + reserve > context && conversation.forget_oldest()) {
    listener.warn(kForgetsTheOldest);
    prompt = encoder_.encode(conversation);
  }
  SPW_CHECK(static_cast<int64_t>(prompt.size()) < context, kInvalidArgument,
            "this message has {} tokens with its surroundings, the context {}; shorten it",
            prompt.size(), context);
  return prompt;
}

ChatAnswer EngineSource::answer(Conversation& conversation, const AnswerListener& listener) {
  GenerationRequest request;
  request.prompt = make_prompt(conversation, listener);
  request.max_tokens = options_.max_tokens;
  request.sampling = options_.sampling;
  request.stop = options_.stop;
  ++options_.sampling.seed;  // the same question again gets another answer
  const size_t prompt_tokens = request.prompt.size();
  const Stopwatch watch;
  std::optional<double> wait_s;  // to the first text, as a client of a server would see it
  Answer answer = generate(engine_, std::move(request), [&](const GenerationEvent& event) {
    if (!wait_s && !event.text.empty()) wait_s = watch.seconds();
    listener.show(event.text);
  });
  if (answer.error) throw Error(*answer.error);
  return {.text = std::move(answer.text),
          .finish = answer.finish,
          .tokens = answer.ids.size(),
          .decode_s = answer.total_s - answer.first_token_s,
          .wait_s = wait_s,
          .prompt_tokens = prompt_tokens,
          .context = engine_.max_sequence_tokens(),
          .reused_tokens = answer.reused_tokens};
}

}  // namespace spillway
