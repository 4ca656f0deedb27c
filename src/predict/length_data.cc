// SPDX-License-Identifier: Apache-2.0
#include "predict/length_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"
#include "text/json_document.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

class DataReader {
 public:
  DataReader(std::string label, const Tokenizer& tokenizer)
      : label_(std::move(label)), tokenizer_(tokenizer) {}

  void read_array(std::string_view text) {
    const JsonDocument document(text, label_);
    size_t index = 0;
    document.root().for_each_element([&](JsonValue element) {
      read_object(element, fmt::format("{}: element {}", label_, index++));
    });
  }

  void read_lines(std::string_view text) {
    size_t number = 0;
    while (!text.empty()) {
      ++number;
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      const std::string where = fmt::format("{}:{}", label_, number);
      const JsonDocument document(line, where);
      read_object(document.root(), where);
    }
  }

  LengthData take() {
    SPW_CHECK(!data_.examples.empty(), kInvalidArgument,
              "{}: no prompt with an answer ({} without one)", label_, data_.without_answer);
    return std::move(data_);
  }

 private:
  static std::optional<std::string> try_text(JsonValue object, std::string_view key,
                                             const std::string& where) {
    const auto member = object.try_member(key);
    if (!member || member->is_null()) return std::nullopt;
    SPW_CHECK(member->is_string(), kInvalidArgument, "{}: \"{}\" is not a string", where, key);
    return std::string(member->string());
  }

  void read_object(JsonValue object, const std::string& where) {
    SPW_CHECK(object.is_object(), kInvalidArgument, "{}: not a JSON object", where);
    if (object.try_member("conversations")) return read_conversation(object, where);
    if (const auto instruction = try_text(object, "instruction", where)) {
      const auto input = try_text(object, "input", where);
      const std::string prompt =
          input && !input->empty() ? *instruction + "\n" + *input : *instruction;
      return add(prompt, *instruction, try_answer(object, where));
    }
    const auto prompt = try_text(object, "prompt", where);
    SPW_CHECK(prompt.has_value(), kInvalidArgument,
              "{}: none of \"prompt\", \"instruction\" and \"conversations\" is in it", where);
    add(*prompt, *prompt, try_answer(object, where));
  }

  std::optional<int64_t> try_answer(JsonValue object, const std::string& where) const {
    const auto tokens = object.try_member("tokens");
    if (tokens && tokens->is_array()) return static_cast<int64_t>(tokens->size());
    if (tokens && !tokens->is_null()) {
      SPW_CHECK(tokens->is_integer() && tokens->integer() >= 0, kInvalidArgument,
                "{}: \"tokens\" is neither a number of tokens nor a list of ids", where);
      return tokens->integer();
    }
    const auto output = try_text(object, "output", where);
    return output ? std::optional(measure(*output)) : std::nullopt;
  }

  // Pairs each answer with the message right before it: earlier messages are not what it answers.
  void read_conversation(JsonValue object, const std::string& where) {
    const JsonValue messages = *object.try_member("conversations");
    SPW_CHECK(messages.is_array(), kInvalidArgument, "{}: \"conversations\" is not a list", where);
    std::optional<std::string> asked, first;
    messages.for_each_element([&](JsonValue message) {
      SPW_CHECK(message.is_object(), kInvalidArgument, "{}: a message is not an object", where);
      const auto from = try_text(message, "from", where), value = try_text(message, "value", where);
      SPW_CHECK(from && value, kInvalidArgument, "{}: a message without \"from\" or \"value\"",
                where);
      const bool is_answer = *from == "gpt" || *from == "assistant" || *from == "chatgpt";
      if (is_answer && asked) add(*asked, *first, measure(*value));
      if (!is_answer && asked) add(*asked, *first, std::nullopt);
      if (is_answer) {
        asked.reset();
      } else {
        asked = value;
        if (!first) first = value;
      }
    });
    if (asked) add(*asked, *first, std::nullopt);
  }

  void add(const std::string& prompt, const std::string& group, std::optional<int64_t> tokens) {
    if (prompt.empty() || !tokens || *tokens == 0) {
      ++data_.without_answer;
      return;
    }
    data_.examples.push_back({.prompt = prompt, .group = group, .tokens = *tokens});
  }

  int64_t measure(const std::string& answer) const {
    return static_cast<int64_t>(tokenizer_.encode(answer, {.add_special = false}).size());
  }

  std::string label_;
  const Tokenizer& tokenizer_;
  LengthData data_;
};

}  // namespace

LengthData parse_length_data(std::string_view text, const std::string& label,
                             const Tokenizer& tokenizer) {
  SPW_CHECK(!text.starts_with("\xFD"
                              "7zXZ"),
            kInvalidArgument, "{}: packed; unpack it first (xz -dk)", label);
  DataReader reader(label, tokenizer);
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  if (text.substr(begin).starts_with('[')) {
    reader.read_array(text);
  } else {
    reader.read_lines(text);
  }
  return reader.take();
}

LengthData read_length_data(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  return parse_length_data(read_text_file(path, kMaxFileBytes), printable_path(path), tokenizer);
}

}  // namespace spillway
