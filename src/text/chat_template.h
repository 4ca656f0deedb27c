// SPDX-License-Identifier: Apache-2.0
// Conversations as the text a chat model was trained on. Jinja is not run: known templates are
// recognised.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_segment.h"
#include "text/vocabulary.h"

namespace spillway {

struct ChatMessage {
  std::string role;
  std::string content;
};

enum class ChatFormat {
  kChatMl,  // <|im_start|>role\n ... <|im_end|>: Qwen, SmolLM2
  kLlama2,  // <s>[INST] <<SYS>> ... [/INST] ... </s>
  kLlama3,  // <|start_header_id|>role<|end_header_id|>\n\n ... <|eot_id|>
  kZephyr,  // <|user|>\n ... </s>: Zephyr, TinyLlama
  kPhi3,    // <|user|>\n ... <|end|>
};

// A format and what differs between the templates of one format.
struct ChatTemplate {
  ChatTemplate(ChatFormat format);  // implicit: a format alone stands for its usual template

  ChatFormat format;
  std::string bos;  // how BOS and EOS are spelled
  std::string eos;
  bool begins_with_bos = false;
  bool trims_content = false;   // white space around each content is dropped
  bool always_prompts = false;  // the assistant's turn is opened even when it is not asked for
  bool drops_system = false;    // system messages do not appear
  bool answers_follow =
      false;  // every user turn opens the assistant's, which has no header of its own (Phi-3)
  std::string default_system;  // used when the conversation does not begin with a system message
  std::string
      system_preamble;  // put before the system message, which then always appears (Llama 3.1)
};

using ChatSegment = TextSegment;

// What users call a format: chatml, llama-2, llama-3, zephyr, phi-3; read without regard to case
// and hyphens.
std::string_view chat_format_name(ChatFormat format);
[[nodiscard]] std::optional<ChatFormat> try_chat_format_from_name(std::string_view name);
// All of them, to be read: "chatml, llama-2, ... and phi-3".
std::string chat_format_names();
// The control tokens without which a vocabulary cannot tell the format's turns apart; none for
// formats that spell their turns in plain text.
std::span<const std::string_view> chat_format_tokens(ChatFormat format);

// What the Jinja text renders, when it is one of the known formats.
[[nodiscard]] std::optional<ChatFormat> try_detect_chat_format(std::string_view jinja_template);
[[nodiscard]] std::optional<ChatTemplate> try_detect_chat_template(std::string_view jinja_template);
// The same for the vocabulary's template, with BOS and EOS as this vocabulary spells them.
[[nodiscard]] std::optional<ChatTemplate> try_detect_chat_template(const Vocabulary& vocabulary);
// A template from elsewhere, with this vocabulary's BOS and EOS.
ChatTemplate spelled_for(ChatTemplate chat, const Vocabulary& vocabulary);

// Roles and contents are not markers, so what they say is never taken for a control token. The text
// contains BOS exactly where the template has it (Llama 2 before every user turn, Llama 3 and Phi-3
// at the start, ChatML and Zephyr nowhere): encode with add_special = false. Throws
// Error(kInvalidArgument) for a role the format does not have, and in Llama 2 for turns that do not
// alternate.
std::vector<ChatSegment> render_chat_segments(const ChatTemplate& chat,
                                              std::span<const ChatMessage> messages,
                                              bool add_generation_prompt);

}  // namespace spillway
