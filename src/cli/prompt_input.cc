// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_input.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr size_t kMaxTextBytes = size_t{512} << 20;

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

}  // namespace

std::string read_text_input(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const std::unique_ptr<std::FILE, CloseFile> file(standard ? stdin
                                                            : std::fopen(path.c_str(), "rb"));
  SPW_CHECK(file != nullptr, kInvalidArgument, "cannot open {}: {}", name, std::strerror(errno));
  std::string text;
  std::vector<char> piece(size_t{1} << 16);
  // A signal ends a read early, and the next read would wait for the rest.
  for (size_t count = piece.size(); count == piece.size() && !interrupted();) {
    count = std::fread(piece.data(), 1, piece.size(), file.get());
    text.append(piece.data(), count);
    SPW_CHECK(text.size() <= kMaxTextBytes, kInvalidArgument, "{} has more than {} bytes", name,
              kMaxTextBytes);
  }
  SPW_CHECK(!interrupted(), kCancelled, "stopped while reading {}", name);
  SPW_CHECK(std::ferror(file.get()) == 0, kInvalidArgument, "cannot read {}: {}", name,
            std::strerror(errno));
  require_utf8(text, name);
  return text;
}

void PromptInput::add_to(Command& command, bool allow_ids) {
  auto* text_option = command.add_option("-p,--prompt,PROMPT", text, "the text")
                          ->default_text("standard input, if piped")
                          ->basic();
  auto* file_option =
      command.add_option("-f,--file", file, "read the text from this file; - is standard input")
          ->placeholder("FILE")
          ->basic();
  text_option->excludes(file_option);
  if (allow_ids) {
    command.add_option("--ids", ids, "token ids instead of text, such as 1,15043")
        ->excludes(text_option)
        ->excludes(file_option)
        ->placeholder("LIST");
  }
  command.add_flag("--no-special", no_special, "no BOS or EOS around the text");
}

void require_utf8(std::string_view text, const std::string& what) {
  const size_t valid = valid_utf8_prefix_bytes(text);
  SPW_CHECK(valid == text.size(), kInvalidArgument, "{} is not UTF-8: byte 0x{:02x} at offset {}",
            what, static_cast<unsigned char>(text[valid]), valid);
}

Prompt PromptInput::read() const {
  Prompt prompt;
  prompt.add_special = !no_special;
  if (!ids.empty()) {
    prompt.ids = parse_ids(ids);
  } else if (text) {
    require_utf8(*text, "the prompt");
    prompt.text = *text;
  } else if (file) {
    prompt.text = read_text_input(*file);
  } else {
    constexpr const char* kHow = "give one behind the model, with -f FILE, or through a pipe";
    SPW_CHECK(!stdin_is_terminal(), kInvalidArgument, "no prompt; {}", kHow);
    prompt.text = read_text_input("-");
    SPW_CHECK(!prompt.text->empty(), kInvalidArgument, "no prompt, and standard input is empty; {}",
              kHow);
    // `echo` adds this newline, which is not part of the prompt.
    if (prompt.text->ends_with('\n')) prompt.text->pop_back();
  }
  return prompt;
}

std::vector<TokenId> Prompt::to_tokens(const LoadedModel& loaded) const {
  if (text) {
    const Tokenizer& tokenizer =
        loaded.require_tokenizer("give token ids instead of text, with --ids");
    return tokenizer.encode(*text, {.add_special = add_special});
  }
  for (const TokenId id : ids) {
    SPW_CHECK(id >= 0 && id < loaded.model.spec.vocab_size, kInvalidArgument,
              "token id {} is outside the model's vocabulary of {} tokens", id,
              loaded.model.spec.vocab_size);
  }
  return ids;
}

std::vector<TokenId> parse_ids(const std::string& list) {
  std::vector<TokenId> ids;
  const char* at = list.data();
  const char* const end = list.data() + list.size();
  while (true) {
    TokenId id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    SPW_CHECK(error == std::errc() && (next == end || *next == ','), kInvalidArgument,
              "--ids: '{}' is not a list of token ids like 1,2,3",
              std::string_view(at, std::min<size_t>(20, end - at)));
    ids.push_back(id);
    if (next == end) return ids;
    at = next + 1;
  }
}

}  // namespace spillway
