// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_input.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "storage/file.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{512} << 20;

std::string read_standard_input() {
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  SPW_CHECK(text.size() <= kMaxTextBytes, kInvalidArgument, "standard input has more than {} bytes",
            kMaxTextBytes);
  return text;
}

}  // namespace

void PromptInput::add_to(CLI::App& command, bool allow_ids) {
  auto* text_option = command.add_option("-p,--prompt", text, "the text");
  auto* file_option =
      command.add_option("-f,--file", file, "the text is in this file; - is standard input");
  text_option->excludes(file_option);
  if (allow_ids) {
    command.add_option("--ids", ids, "token ids instead of text, e.g. 1,15043")
        ->excludes(text_option)
        ->excludes(file_option);
  }
  command.add_flag("--no-special", no_special, "no BOS or EOS around the text");
}

void require_utf8(std::string_view text, const std::string& what) {
  const size_t valid = valid_utf8_prefix_bytes(text);
  SPW_CHECK(valid == text.size(), kInvalidArgument, "{} is not UTF-8: byte 0x{:02x} at offset {}",
            what, static_cast<unsigned char>(text[valid]), valid);
}

std::string PromptInput::read_text() const {
  SPW_CHECK(text || file, kInvalidArgument, "no prompt; give one with -p TEXT or -f FILE");
  if (text) {
    require_utf8(*text, "the prompt");
    return *text;
  }
  std::string content = *file == "-" ? read_standard_input() : read_text_file(*file, kMaxTextBytes);
  require_utf8(content, *file == "-" ? "standard input" : *file);
  return content;
}

std::vector<TokenId> PromptInput::read_tokens(const LoadedModel& loaded) const {
  if (!ids.empty()) return parse_ids(ids);
  const std::string prompt = read_text();
  return loaded.require_tokenizer().encode(prompt, {.add_special = !no_special});
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
