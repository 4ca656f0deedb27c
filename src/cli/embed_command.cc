// SPDX-License-Identifier: Apache-2.0
// spillway predictor embed: prints an encoder's embeddings of texts, for parity tests.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/encoder_option.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/prompt_input.h"

namespace spillway {
namespace {

struct EmbedOptions {
  std::string texts;
  std::string encoder;
  bool exact = false;
};

int embed(const EmbedOptions& options) {
  const std::string all = read_text_input(options.texts);
  const auto encoder = open_encoder(
      options.encoder, options.exact ? EncoderPrecision::kExact : EncoderPrecision::kFast);
  for (std::string_view rest = all; !rest.empty();) {
    SPW_CHECK(!interrupted(), kCancelled, "stopped");
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view text = rest.substr(0, end);
    print_json({{"ids", encoder->tokens_of(text)}, {"embedding", encoder->embed(text)}});
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return 0;
}

}  // namespace

void add_embed_command(Command& parent) {
  auto* command = parent.add_subcommand(
      "embed", "token ids and embedding of each line of a text, for parity tests");
  command->hide();
  auto options = std::make_shared<EmbedOptions>();
  command->add_option("TEXTS", options->texts, "a file, a text a line; - is standard input")
      ->required()
      ->basic();
  command->add_option("--encoder", options->encoder, "a folder with a BERT or DistilBERT")
      ->required()
      ->placeholder("DIR")
      ->basic();
  command->add_flag("--exact", options->exact, "with weights as they are stored")->basic();
  command->action([options] { return embed(*options); });
}

}  // namespace spillway
