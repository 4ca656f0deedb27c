// SPDX-License-Identifier: Apache-2.0
#include "cli/template_option.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "storage/file.h"
#include "text/chat_style.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;

// Warns about a template whose tokens the vocabulary lacks: the model was hardly trained with it.
void warn_about_missing_tokens(const ChatStyle& style, const Tokenizer& tokenizer) {
  const auto& tokens = tokenizer.vocabulary().tokens;
  for (const std::string_view text : style.tokens) {
    const bool there = std::any_of(tokens.begin(), tokens.end(),
                                   [&](const VocabToken& token) { return token.text == text; });
    if (there) continue;
    log_warning(
        "this model has no token {}, with which --template {} marks turns: it is read as plain "
        "text, and answers may not end",
        text, style.name);
    return;
  }
}

}  // namespace

void TemplateOption::add_to(Command& command) {
  command
      .add_option_function(
          "--template", [this](const std::string& value) { read(value); },
          "chat template in place of the model's: " + chat_style_names() +
              ", or a file with a Jinja template")
      ->placeholder("NAME|FILE");
}

void TemplateOption::read(const std::string& value) {
  style_ = try_chat_style(value);
  if (style_ != nullptr) {
    jinja_ = style_->jinja;
    identity_ = style_->name;
    return;
  }
  std::error_code error;
  SPW_CHECK(std::filesystem::exists(value, error), kInvalidArgument,
            "--template is '{}', which is neither a file nor a known style; known are {}",
            printable(value), chat_style_names());
  jinja_ = read_text_file(value, kMaxTemplateBytes);
  identity_ = "file " + digest128(jinja_);
  ChatTemplate(jinja_, Vocabulary());  // a template error should show before anything is loaded
}

std::optional<ChatTemplate> TemplateOption::try_template(const Tokenizer& tokenizer) const {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (!identity_.empty()) {
    if (style_ != nullptr) warn_about_missing_tokens(*style_, tokenizer);
    return ChatTemplate(jinja_, vocabulary);
  }
  if (vocabulary.chat_template.empty()) return std::nullopt;
  return ChatTemplate(vocabulary.chat_template, vocabulary);
}

ChatTemplate TemplateOption::require_template(const Tokenizer& tokenizer,
                                              const std::string& model) const {
  if (auto chat = try_template(tokenizer)) return std::move(*chat);
  fail(ErrorCode::kInvalidArgument,
       "{} has no chat template, so it was not trained to chat; use spillway run, or choose a "
       "template with --template ({}, or a file)",
       printable(model), chat_style_names());
}

}  // namespace spillway
