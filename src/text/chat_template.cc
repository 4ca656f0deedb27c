// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr std::array<std::pair<ChatFormat, std::string_view>, 5> kFormatNames{
    {{ChatFormat::kChatMl, "chatml"},
     {ChatFormat::kLlama2, "llama-2"},
     {ChatFormat::kLlama3, "llama-3"},
     {ChatFormat::kZephyr, "zephyr"},
     {ChatFormat::kPhi3, "phi-3"}}};

// Without case and hyphens, so that Llama3 is llama-3.
std::string bare_name(std::string_view name) {
  std::string bare;
  for (const char c : name) {
    if (c != '-') bare.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return bare;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// What Python's str.strip() removes.
bool is_strippable(char32_t c) { return is_unicode_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view trim_end(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    i += c.bytes;
    if (!c.valid || !is_strippable(c.code_point)) end = i;
  }
  return text.substr(0, end);
}

std::string_view trim(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text, 0);
    if (!c.valid || !is_strippable(c.code_point)) break;
    text.remove_prefix(c.bytes);
  }
  return trim_end(text);
}

class Segments {
 public:
  void marker(std::string_view text) { append(text, true); }
  void content(std::string_view text) { append(text, false); }
  std::vector<ChatSegment> take() { return std::move(segments_); }

 private:
  void append(std::string_view text, bool is_marker) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().is_marker != is_marker)
      segments_.push_back({.text = {}, .is_marker = is_marker});
    segments_.back().text.append(text);
  }
  std::vector<ChatSegment> segments_;
};

[[noreturn]] void fail_role(const ChatMessage& message) {
  fail(ErrorCode::kInvalidArgument, "the chat template has no role '{}'", printable(message.role));
}

bool has_role(const ChatMessage& message, std::string_view role) { return message.role == role; }

// The system text is a literal between the markers of a template that has one of its own.
std::string default_system_of(std::string_view jinja) {
  constexpr std::string_view kOpen = "<|im_start|>system";
  constexpr std::string_view kClose = "<|im_end|>";
  for (size_t at = jinja.find(kOpen); at != std::string_view::npos;
       at = jinja.find(kOpen, at + 1)) {
    std::string_view rest = jinja.substr(at + kOpen.size());
    if (rest.starts_with("\n"))
      rest.remove_prefix(1);
    else if (rest.starts_with("\\n"))
      rest.remove_prefix(2);
    else
      continue;
    const std::string_view literal = rest.substr(0, rest.find(kClose));
    if (literal.size() < rest.size() && literal.find_first_of("'\"{}\\") == std::string_view::npos)
      return std::string(literal);
  }
  return {};
}

void render_chat_ml(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                    Segments& out) {
  const auto turn = [&](std::string_view role, std::string_view content) {
    out.marker("<|im_start|>");
    out.content(role);
    out.marker("\n");
    out.content(chat.trims_content ? trim(content) : content);
    out.marker("<|im_end|>\n");
  };
  if (!chat.default_system.empty() && !messages.empty() && !has_role(messages[0], "system"))
    turn("system", chat.default_system);
  for (const ChatMessage& message : messages) turn(message.role, message.content);
}

void render_llama3(const ChatTemplate& chat, std::span<const ChatMessage> messages, Segments& out) {
  const auto turn = [&](std::string_view role, std::string_view preamble,
                        std::string_view content) {
    out.marker("<|start_header_id|>");
    out.content(role);
    out.marker("<|end_header_id|>\n\n");
    out.marker(preamble);
    out.content(chat.trims_content ? trim(content) : content);
    out.marker("<|eot_id|>");
  };
  if (!chat.system_preamble.empty()) {
    const bool has_system = !messages.empty() && has_role(messages[0], "system");
    turn("system", chat.system_preamble, has_system ? messages[0].content : "");
    if (has_system) messages = messages.subspan(1);
  }
  for (const ChatMessage& message : messages) turn(message.role, "", message.content);
}

void render_llama2(const ChatTemplate& chat, std::span<const ChatMessage> messages, Segments& out) {
  const ChatMessage* system = nullptr;
  if (!messages.empty() && has_role(messages[0], "system")) {
    system = &messages[0];
    messages = messages.subspan(1);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool user = has_role(message, "user");
    SPW_CHECK(user == (i % 2 == 0), kInvalidArgument,
              "the chat template wants user and assistant to alternate");
    if (has_role(message, "system")) {
      out.marker("<<SYS>>\n");
      out.content(trim(message.content));
      out.marker("\n<</SYS>>\n\n");
      continue;
    }
    if (!user && !has_role(message, "assistant")) fail_role(message);
    if (!user) {
      out.marker(" ");
      out.content(trim(message.content));
      out.marker(" " + chat.eos);
      continue;
    }
    out.marker(chat.bos + "[INST] ");
    if (i == 0 && system != nullptr) {
      // The template strips the system block and the first message as one text.
      const std::string_view content = trim_end(message.content);
      out.marker("<<SYS>>\n");
      out.content(system->content);
      out.marker(content.empty() ? "\n<</SYS>>" : "\n<</SYS>>\n\n");
      out.content(content);
    } else {
      out.content(trim(message.content));
    }
    out.marker(" [/INST]");
  }
}

// Zephyr and Phi-3: <|role|>, the content, an end that depends on the format.
void render_role_tags(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                      std::string_view end, Segments& out) {
  for (const ChatMessage& message : messages) {
    if (!has_role(message, "system") && !has_role(message, "user") &&
        !has_role(message, "assistant"))
      fail_role(message);
    if (chat.drops_system && has_role(message, "system")) continue;
    const bool has_header = !(chat.answers_follow && has_role(message, "assistant"));
    if (has_header) out.marker("<|" + message.role + "|>\n");
    out.content(chat.trims_content ? trim(message.content) : message.content);
    out.marker(end);
    out.marker("\n");
    if (chat.answers_follow && has_role(message, "user")) out.marker("<|assistant|>\n");
  }
}

std::string_view generation_prompt(ChatFormat format) {
  switch (format) {
    case ChatFormat::kChatMl:
      return "<|im_start|>assistant\n";
    case ChatFormat::kLlama3:
      return "<|start_header_id|>assistant<|end_header_id|>\n\n";
    case ChatFormat::kZephyr:
    case ChatFormat::kPhi3:
      return "<|assistant|>\n";
    case ChatFormat::kLlama2:  // [/INST] is the prompt
      return "";
  }
  return "";
}

}  // namespace

ChatTemplate::ChatTemplate(ChatFormat chat_format) : format(chat_format), bos("<s>"), eos("</s>") {
  if (format == ChatFormat::kLlama3) {
    bos = "<|begin_of_text|>";
    eos = "<|end_of_text|>";
    trims_content = true;
  }
  begins_with_bos = format == ChatFormat::kLlama3 || format == ChatFormat::kPhi3;
}

std::string_view chat_format_name(ChatFormat format) {
  for (const auto& [known, name] : kFormatNames)
    if (known == format) return name;
  return "unknown";
}

std::optional<ChatFormat> try_chat_format_from_name(std::string_view name) {
  for (const auto& [format, known] : kFormatNames)
    if (bare_name(known) == bare_name(name)) return format;
  return std::nullopt;
}

std::string chat_format_names() {
  std::string text;
  for (size_t i = 0; i < kFormatNames.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 < kFormatNames.size() ? ", " : " and ";
    text += fmt::format("{}{}", before, kFormatNames[i].second);
  }
  return text;
}

std::span<const std::string_view> chat_format_tokens(ChatFormat format) {
  static constexpr std::string_view kChatMl[] = {"<|im_start|>", "<|im_end|>"};
  static constexpr std::string_view kLlama3[] = {"<|start_header_id|>", "<|end_header_id|>",
                                                 "<|eot_id|>"};
  static constexpr std::string_view kPhi3[] = {"<|user|>", "<|assistant|>", "<|end|>"};
  switch (format) {
    case ChatFormat::kChatMl:
      return kChatMl;
    case ChatFormat::kLlama3:
      return kLlama3;
    case ChatFormat::kPhi3:
      return kPhi3;
    case ChatFormat::kLlama2:
    case ChatFormat::kZephyr:
      return {};
  }
  return {};
}

std::optional<ChatFormat> try_detect_chat_format(std::string_view jinja) {
  if (contains(jinja, "<|im_start|>")) return ChatFormat::kChatMl;
  if (contains(jinja, "<|start_header_id|>") && contains(jinja, "<|eot_id|>"))
    return ChatFormat::kLlama3;
  if (contains(jinja, "[INST]") && contains(jinja, "<<SYS>>")) return ChatFormat::kLlama2;
  if (!contains(jinja, "<|user|>") || !contains(jinja, "<|assistant|>")) return std::nullopt;
  if (contains(jinja, "<|end|>")) return ChatFormat::kPhi3;
  if (contains(jinja, "eos_token") || contains(jinja, "</s>")) return ChatFormat::kZephyr;
  return std::nullopt;
}

std::optional<ChatTemplate> try_detect_chat_template(std::string_view jinja) {
  const auto format = try_detect_chat_format(jinja);
  if (!format) return std::nullopt;
  ChatTemplate chat(*format);
  if (*format == ChatFormat::kLlama2) return chat;
  chat.begins_with_bos = contains(jinja, "bos_token");
  chat.trims_content =
      contains(jinja, "| trim") || contains(jinja, "|trim") || contains(jinja, ".strip()");
  const bool never_asks = !contains(jinja, "add_generation_prompt");
  chat.answers_follow = *format == ChatFormat::kPhi3 && never_asks;
  chat.always_prompts = *format == ChatFormat::kLlama3 && never_asks;
  chat.drops_system = *format == ChatFormat::kPhi3 && !contains(jinja, "system");
  if (*format == ChatFormat::kChatMl) chat.default_system = default_system_of(jinja);
  // The date is the one the template falls back to.
  if (*format == ChatFormat::kLlama3 && contains(jinja, "Cutting Knowledge Date: December 2023"))
    chat.system_preamble = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  return chat;
}

std::optional<ChatTemplate> try_detect_chat_template(const Vocabulary& vocabulary) {
  auto chat = try_detect_chat_template(vocabulary.chat_template);
  if (!chat) return std::nullopt;
  return spelled_for(*std::move(chat), vocabulary);
}

ChatTemplate spelled_for(ChatTemplate chat, const Vocabulary& vocabulary) {
  if (vocabulary.bos) chat.bos = vocabulary.tokens.at(static_cast<size_t>(*vocabulary.bos)).text;
  if (vocabulary.eos) chat.eos = vocabulary.tokens.at(static_cast<size_t>(*vocabulary.eos)).text;
  return chat;
}

std::vector<ChatSegment> render_chat_segments(const ChatTemplate& chat,
                                              std::span<const ChatMessage> messages,
                                              bool add_generation_prompt) {
  Segments out;
  if (chat.begins_with_bos && chat.format != ChatFormat::kLlama2) out.marker(chat.bos);
  switch (chat.format) {
    case ChatFormat::kChatMl:
      render_chat_ml(chat, messages, out);
      break;
    case ChatFormat::kLlama2:
      render_llama2(chat, messages, out);
      break;
    case ChatFormat::kLlama3:
      render_llama3(chat, messages, out);
      break;
    case ChatFormat::kZephyr:
      render_role_tags(chat, messages, chat.eos, out);
      break;
    case ChatFormat::kPhi3:
      render_role_tags(chat, messages, "<|end|>", out);
      break;
  }
  if ((add_generation_prompt && !chat.answers_follow) || chat.always_prompts)
    out.marker(generation_prompt(chat.format));
  return out.take();
}

}  // namespace spillway
