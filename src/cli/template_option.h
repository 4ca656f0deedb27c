// SPDX-License-Identifier: Apache-2.0
// The option --template: a chat template for models without one, or with a bad one.
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
  // Adds the option. It is read while the command line is parsed, so this object must not move
  // until then.
  void add_to(Command& command);

  // `value` is the name of a style or a template file. Throws kInvalidArgument if it is neither, or
  // if the file's template is not valid.
  void read(const std::string& value);

  // Returns the chosen template for this tokenizer; without the option, the model's own one, or
  // nullopt if it has none. Warns if the vocabulary lacks the chosen style's tokens. Throws
  // kInvalidArgument if the model's template is not valid.
  [[nodiscard]] std::optional<ChatTemplate> try_template(const Tokenizer& tokenizer) const;
  // Returns the same, but throws if there is no template, with advice. `model` is the user's name
  // for the model.
  ChatTemplate require_template(const Tokenizer& tokenizer, const std::string& model) const;

  // Identifies the template for the identity of a job: the style's name, or a checksum of the
  // file's text. Empty if the option is not given.
  const std::string& identity() const { return identity_; }

 private:
  const ChatStyle* style_ = nullptr;  // set if the option names a style
  std::string jinja_;
  std::string identity_;
};

}  // namespace spillway
