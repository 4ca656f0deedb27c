// SPDX-License-Identifier: Apache-2.0
// --template: how a conversation becomes text, where the model does not say it, or says it badly.
#pragma once

#include <optional>
#include <string>

#include "text/chat_style.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spillway {

class Command;

class TemplateOption {
 public:
  // The option is read while the command line is, so this object must stay where it is until then.
  void add_to(Command& command);

  // `value` is the name of a style or a file with a template. Throws kInvalidArgument where it is
  // neither, or where the file has no template.
  void read(const std::string& value);

  // What --template says, for this tokenizer; without it the model's own template, or nullopt where
  // it has none. Warns when the vocabulary lacks the given style's tokens. Throws kInvalidArgument
  // for a model's template that is none.
  [[nodiscard]] std::optional<ChatTemplate> try_template(const Tokenizer& tokenizer) const;
  // The same, for those who cannot do without: throws where there is none, saying what to do.
  // `model` is what the user calls it.
  ChatTemplate require_template(const Tokenizer& tokenizer, const std::string& model) const;

  // What prompts depend on, for the identity of a job: the style's name, or a checksum of the
  // file's text. Empty where the option is not given.
  const std::string& identity() const { return identity_; }

 private:
  const ChatStyle* style_ = nullptr;  // where it is one of them
  std::string jinja_;
  std::string identity_;
};

}  // namespace spillway
