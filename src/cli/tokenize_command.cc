// SPDX-License-Identifier: Apache-2.0
// spillway tokenize: prints the token ids of a text; a vocabulary alone is enough.
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "engine/model_catalog.h"
#include "engine/vocabulary_from_files.h"
#include "storage/model_files.h"
#include "text/tokenizer.h"

namespace spillway {
namespace {

struct TokenizeOptions {
  std::string model;
  PromptInput input;
  bool parse_special = false;
  bool json = false;
};

int tokenize(const TokenizeOptions& options) {
  const Prompt prompt = options.input.read();
  const Tokenizer tokenizer(vocabulary_from_files(open_tokenizer(resolve_model(options.model))));
  const auto ids = tokenizer.encode(
      *prompt.text, {.add_special = prompt.add_special, .parse_special = options.parse_special});
  SPW_CHECK(!interrupted(), kCancelled, "stopped after {} tokens", ids.size());
  if (options.json) {
    print_json({{"ids", ids}, {"count", ids.size()}});
  } else {
    print_now(fmt::format("{}\n", fmt::join(ids, " ")));
  }
  return 0;
}

}  // namespace

void add_tokenize_command(Command& app) {
  auto* command = app.add_subcommand("tokenize", "show the token ids of a text");
  auto options = std::make_shared<TokenizeOptions>();
  command
      ->add_option("-m,--model,MODEL", options->model,
                   "a model, a vocabulary-only GGUF, or a folder with tokenizer.json")
      ->required()
      ->basic();
  options->input.add_to(*command, false);
  command
      ->add_flag("--parse-special", options->parse_special,
                 "control tokens spelled out in the text are found")
      ->basic();
  command->add_flag("--json", options->json, "print {\"ids\": [...]}")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway tokenize smollm2 'Hello world'");
  command->action([options] { return tokenize(*options); });
}

}  // namespace spillway
