// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <utility>

#include "base/error.h"
#include "text/jinja/chat_rendering.h"

namespace spillway {
namespace {

std::string spelling_of(const std::optional<TokenId>& id, const Vocabulary& vocabulary) {
  return id ? vocabulary.tokens.at(static_cast<size_t>(*id)).text : std::string();
}

bool shows_system(const ChatTemplate& chat) {
  constexpr std::string_view kWords = "seven grey herons";
  try {
    const auto segments = chat.render(
        {.messages = messages_to_json({{"system", std::string(kWords)}, {"user", "Hi."}})});
    for (const TextSegment& segment : segments)
      if (segment.text.find(kWords) != std::string::npos) return true;
  } catch (const Error&) {
    // The template refuses a system message.
  }
  return false;
}

}  // namespace

nlohmann::ordered_json messages_to_json(const std::vector<ChatMessage>& messages) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages)
    out.push_back({{"role", message.role}, {"content", message.content}});
  return out;
}

ChatTemplate::ChatTemplate(std::string_view jinja, const Vocabulary& vocabulary)
    : source_(std::make_shared<const std::string>(jinja)),
      template_(jinja),
      bos_(spelling_of(vocabulary.bos, vocabulary)),
      eos_(spelling_of(vocabulary.eos, vocabulary)) {
  supports_system_role_ = shows_system(*this);
}

std::vector<TextSegment> ChatTemplate::render(const ChatPrompt& prompt) const {
  return render_chat(template_, {.messages = prompt.messages,
                                 .tools = prompt.tools,
                                 .variables = prompt.variables,
                                 .bos = bos_,
                                 .eos = eos_,
                                 .add_generation_prompt = prompt.add_generation_prompt});
}

}  // namespace spillway
