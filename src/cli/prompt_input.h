// SPDX-License-Identifier: Apache-2.0
// The prompt of a command: text, a file, or ids.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"

namespace spillway {

class Command;

// What was given: ids, or text still to be encoded.
struct Prompt {
  std::vector<TokenId> ids;
  std::optional<std::string> text;
  bool add_special = true;

  std::vector<TokenId> to_tokens(const LoadedModel& loaded) const;
};

struct PromptInput {
  std::optional<std::string> text;  // -p, or behind the model
  std::optional<std::string> file;  // -f, "-" is standard input
  std::string ids;                  // --ids 1,2,3
  bool no_special = false;

  // After the model's positional argument.
  void add_to(Command& command, bool allow_ids);
  // Reads and checks what was given, without a model: bad input should not have to wait for one.
  // Where nothing was, it is what is piped in, without its last newline. Standard input can be read
  // only once, so this is called once. Throws kInvalidArgument when there is nothing at all.
  Prompt read() const;
};

// "1,2,3". Throws kInvalidArgument.
std::vector<TokenId> parse_ids(const std::string& list);

// The whole of a file, pipe or ("-") standard input, at most 512 MiB of UTF-8. Throws
// kInvalidArgument, kIo or kCancelled.
std::string read_text_input(const std::string& path);

// Throws kInvalidArgument naming `what` and the offset of the first byte that is not UTF-8.
void require_utf8(std::string_view text, const std::string& what);

}  // namespace spillway
