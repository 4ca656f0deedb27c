// SPDX-License-Identifier: Apache-2.0
#include "cli/template_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "storage/file.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;

// Such a vocabulary takes the template, but its model was hardly trained with it.
void warn_about_missing_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const auto& tokens = tokenizer.vocabulary().tokens;
  for (const std::string_view text : chat_format_tokens(chat.format)) {
    const bool there = std::any_of(tokens.begin(), tokens.end(),
                                   [&](const VocabToken& token) { return token.text == text; });
    if (there) continue;
    log_warning(
        "this model has no token {}, with which --template {} marks turns: it is read as plain "
        "text, and answers may not end",
        text, chat_format_name(chat.format));
    return;
  }
}

}  // namespace

void TemplateOption::add_to(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--template", [this](const std::string& value) { read(value); },
          "chat template in place of the model's: " + chat_format_names() +
              ", or a file with a template in one of these styles")
      ->type_name("NAME|FILE");
}

void TemplateOption::read(const std::string& value) {
  if (const auto format = try_chat_format_from_name(value)) {
    given_ = *format;
    identity_ = chat_format_name(*format);
    return;
  }
  std::error_code error;
  SPW_CHECK(std::filesystem::exists(value, error), kInvalidArgument,
            "--template is '{}', which is neither a file nor a known style; known are {}",
            printable(value), chat_format_names());
  const std::string text = read_text_file(value, kMaxTemplateBytes);
  given_ = try_detect_chat_template(text);
  SPW_CHECK(given_.has_value(), kUnsupported,
            "--template {}: this file's style is not known; known are {}, which can also be given "
            "by name",
            printable(value), chat_format_names());
  identity_ = "file " + digest128(text);
}

std::optional<ChatTemplate> TemplateOption::try_template(const Tokenizer& tokenizer) const {
  if (!given_) return try_detect_chat_template(tokenizer.vocabulary());
  warn_about_missing_tokens(*given_, tokenizer);
  return spelled_for(*given_, tokenizer.vocabulary());
}

ChatTemplate TemplateOption::require_template(const Tokenizer& tokenizer,
                                              const std::string& model) const {
  if (const auto chat = try_template(tokenizer)) return *chat;
  SPW_CHECK(!tokenizer.vocabulary().chat_template.empty(), kInvalidArgument,
            "{} has no chat template, so it was not trained to chat; use spillway run, or choose a "
            "template with --template ({})",
            printable(model), chat_format_names());
  fail(ErrorCode::kUnsupported,
       "{} has a chat template of a kind that is not known; choose the one that comes closest with "
       "--template ({}, or a file in one of these styles), or use spillway run",
       printable(model), chat_format_names());
}

}  // namespace spillway
