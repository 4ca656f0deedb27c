// SPDX-License-Identifier: Apache-2.0
#include "text/chat_style.h"

#include <fmt/core.h>

#include <array>

namespace spillway {
namespace {

constexpr std::array<std::string_view, 2> kChatMlTokens = {"<|im_start|>", "<|im_end|>"};
constexpr std::array<std::string_view, 3> kLlama3Tokens = {"<|start_header_id|>",
                                                           "<|end_header_id|>", "<|eot_id|>"};
constexpr std::array<std::string_view, 3> kPhi3Tokens = {"<|user|>", "<|assistant|>", "<|end|>"};

constexpr std::string_view kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr std::string_view kLlama2 =
    "{% set told = messages[0].content if messages[0].role == 'system' else none %}"
    "{% for m in (messages[1:] if told is not none else messages) %}"
    "{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('the chat template wants user and assistant to alternate') }}{% endif %}"
    "{% if m.role == 'assistant' %}{{ ' ' + m.content | trim + ' ' + eos_token }}"
    "{% elif loop.first and told is not none %}"
    "{{ bos_token + '[INST] ' + ('<<SYS>>\\n' + told + '\\n<</SYS>>\\n\\n' + m.content) | trim"
    " + ' [/INST]' }}"
    "{% else %}{{ bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}{% endif %}{% endfor %}";

constexpr std::string_view kLlama3 =
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}";

constexpr std::string_view kZephyr =
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the chat template has no role ' + m.role) }}{% endif %}"
    "{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

constexpr std::string_view kPhi3 =
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the chat template has no role ' + m.role) }}{% endif %}"
    "{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

constexpr std::array<ChatStyle, 5> kStyles{{{"chatml", kChatMl, kChatMlTokens},
                                            {"llama-2", kLlama2, {}},
                                            {"llama-3", kLlama3, kLlama3Tokens},
                                            {"zephyr", kZephyr, {}},
                                            {"phi-3", kPhi3, kPhi3Tokens}}};

// Removes case and hyphens, so that "Llama3" is found as "llama-3".
std::string bare_name(std::string_view name) {
  std::string bare;
  for (const char c : name)
    if (c != '-') bare.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  return bare;
}

}  // namespace

std::span<const ChatStyle> chat_styles() { return kStyles; }

const ChatStyle* try_chat_style(std::string_view name) {
  for (const ChatStyle& style : kStyles)
    if (bare_name(style.name) == bare_name(name)) return &style;
  return nullptr;
}

std::string chat_style_names() {
  std::string text;
  for (size_t i = 0; i < kStyles.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 < kStyles.size() ? ", " : " and ";
    text += fmt::format("{}{}", before, kStyles[i].name);
  }
  return text;
}

}  // namespace spillway
