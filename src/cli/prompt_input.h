// SPDX-License-Identifier: Apache-2.0
// The prompt of a command: text, a file, or ids.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"

namespace CLI {
class App;
}

namespace spillway {

struct PromptInput {
  std::optional<std::string> text;  // -p
  std::optional<std::string> file;  // -f, "-" is standard input
  std::string ids;                  // --ids 1,2,3
  bool no_special = false;

  void add_to(CLI::App& command, bool allow_ids);
  // The text given, checked to be UTF-8. Throws kInvalidArgument when none or two were given.
  std::string read_text() const;
  // Ids as given, or the text encoded.
  std::vector<TokenId> read_tokens(const LoadedModel& loaded) const;
};

// "1,2,3". Throws kInvalidArgument.
std::vector<TokenId> parse_ids(const std::string& list);

// Throws kInvalidArgument naming `what` and the offset of the first byte that is not UTF-8.
void require_utf8(std::string_view text, const std::string& what);

}  // namespace spillway
