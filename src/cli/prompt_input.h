// SPDX-License-Identifier: Apache-2.0
// Reads the prompt of a command: text, a file, or token ids.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"

namespace spillway {

class Command;

// A prompt as it was given: ids, or text still to be encoded.
struct Prompt {
  std::vector<TokenId> ids;
  std::optional<std::string> text;
  bool add_special = true;

  std::vector<TokenId> to_tokens(const LoadedModel& loaded) const;
};

struct PromptInput {
  std::optional<std::string> text;  // from -p, or the argument after the model
  std::optional<std::string> file;  // from -f; "-" is standard input
  std::string ids;                  // from --ids, such as 1,2,3
  bool no_special = false;

  // Adds the options; call it after the model's positional argument is added.
  void add_to(Command& command, bool allow_ids);
  // Reads and checks the prompt without a model, so that bad input is reported before one is
  // loaded. Without options the prompt is what is piped in, without its last newline. Call this
  // once, since standard input can be read only once. Throws kInvalidArgument if there is no prompt
  // at all.
  Prompt read() const;
};

// Parses a list such as "1,2,3". Throws kInvalidArgument.
std::vector<TokenId> parse_ids(const std::string& list);

// Reads all of a file, a pipe or ("-") standard input, at most 512 MiB of UTF-8. Throws
// kInvalidArgument, also if the file cannot be opened or read, or kCancelled.
std::string read_text_input(const std::string& path);

// Throws kInvalidArgument naming `what` and the offset of the first byte that is not UTF-8.
void require_utf8(std::string_view text, const std::string& what);

}  // namespace spillway
