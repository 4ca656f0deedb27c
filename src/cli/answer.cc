// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"

#include <fmt/core.h>

#include <utility>

#include "base/stopwatch.h"
#include "cli/interrupt.h"

namespace spillway {

bool Answer::is_blank() const { return text.find_first_not_of(" \t\r\n") == text.npos; }

Answer generate(EngineClient& engine, GenerationRequest request,
                const std::function<void(const GenerationEvent&)>& show) {
  Answer answer;
  const Stopwatch watch;
  const RequestId id = engine.submit(std::move(request));
  const auto add = [&](const GenerationEvent& event) {
    if (event.token) {
      if (answer.ids.empty()) answer.first_token_s = watch.seconds();
      answer.ids.push_back(*event.token);
    }
    if (event.logprobs) answer.logprobs.push_back(*event.logprobs);
    if (event.finish) {
      answer.finish = *event.finish;
      answer.reused_tokens = event.reused_tokens;
      if (answer.finish == FinishReason::kError)
        answer.error.emplace(event.error_code, event.error);
    }
    answer.text += event.text;
    show(event);
  };
  try {
    for (bool ended = false; !ended;) {
      for (const GenerationEvent& event : engine.take()) {
        if (event.id != id) continue;  // of an earlier request whose answer could not be shown
        add(event);
        ended = event.finish.has_value();
      }
      if (interrupted()) engine.cancel(id);
    }
  } catch (...) {
    engine.cancel(id);  // the caller may go on without this request
    throw;
  }
  answer.total_s = watch.seconds();
  return answer;
}

std::string describe_speed(const Answer& answer) {
  return describe_speed(answer.ids.size(), answer.total_s - answer.first_token_s);
}

std::string describe_speed(size_t tokens, double decode_s) {
  std::string text = fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s");
  if (tokens > 1 && decode_s > 0)
    text += fmt::format(", {:.1f} tokens/s", static_cast<double>(tokens - 1) / decode_s);
  return text;
}

std::string describe_cut(FinishReason finish, size_t tokens, size_t prompt, int64_t context) {
  switch (finish) {
    case FinishReason::kCancelled:
      return "stopped";
    case FinishReason::kLength:
      if (static_cast<int64_t>(prompt + tokens) >= context)
        return fmt::format("cut: the context of {} tokens is full", context);
      return fmt::format("cut at -n {}", tokens);
    case FinishReason::kStop:
    case FinishReason::kError:
      break;
  }
  return "";
}

}  // namespace spillway
