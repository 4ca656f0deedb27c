// SPDX-License-Identifier: Apache-2.0
#include "serve/unsupported_fields.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

bool is_true(const json& value) { return value == true; }
bool is_boolean(const json& value) { return value.is_boolean(); }
// True for an empty string, array or object.
bool is_empty(const json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}
bool is_zero(const json& value) { return value == 0; }
bool is_one(const json& value) { return value == 1; }
bool is_minus_one(const json& value) { return value == -1; }
bool is_not_positive(const json& value) { return value.is_number() && value <= 0; }
bool is_none_or_auto(const json& value) { return value == "none" || value == "auto"; }
bool is_never(const json& /*value*/) { return false; }

struct UnsupportedField {
  std::string_view name;
  bool (*is_neutral)(const json& value);  // for values other than false and []
};

constexpr UnsupportedField kFields[] = {
    // OpenAI
    {"audio", is_never},
    {"function_call", is_none_or_auto},
    {"functions", is_never},
    {"modalities", [](const json& value) { return value == json::array({"text"}); }},
    {"parallel_tool_calls", is_boolean},
    {"prediction", is_never},
    {"reasoning_effort", [](const json& value) { return value == "none"; }},
    {"response_format",
     [](const json& value) { return value.is_object() && value.value("type", json()) == "text"; }},
    {"suffix", [](const json& value) { return value == ""; }},
    {"tool_choice", is_none_or_auto},
    {"verbosity", [](const json& value) { return value == "medium"; }},
    {"web_search_options", is_never},
    // vLLM
    {"allowed_token_ids", is_never},
    {"bad_words", is_empty},
    {"chat_template", is_never},
    {"continue_final_message", is_never},
    {"guided_choice", is_empty},
    {"guided_grammar", is_empty},
    {"guided_json", is_empty},
    {"guided_regex", is_empty},
    {"include_reasoning", is_true},
    {"include_stop_str_in_output", is_never},
    {"logprob_token_ids", is_empty},
    {"prompt_embeds", is_never},
    {"prompt_logprobs", is_never},
    {"repetition_detection", is_empty},
    {"return_tokens_as_token_ids", is_never},
    {"skip_special_tokens", is_true},
    {"structured_outputs", is_empty},
    {"thinking_token_budget", is_minus_one},
    {"truncate_prompt_tokens", is_minus_one},
    {"use_beam_search", is_never},
    {"watermarking", is_never},
    // llama-server
    {"dry_multiplier", is_zero},
    {"dynatemp_range", is_zero},
    {"grammar", is_empty},
    {"json_schema", is_never},
    {"lora", is_empty},
    {"min_keep", is_zero},
    {"mirostat", is_zero},
    {"n_indent", is_zero},
    {"n_probs", is_zero},
    {"post_sampling_probs", is_never},
    {"t_max_predict_ms", is_not_positive},
    {"top_n_sigma", is_not_positive},
    {"typical_p", is_one},
    {"xtc_probability", is_zero},
};

bool asks_for_nothing(const UnsupportedField& field, const json& value) {
  if (field.is_neutral == is_true) return is_true(value);  // if true is neutral, false is not
  return value == false || value == json::array() || field.is_neutral(value);
}

void refuse_unless_neutral(const UnsupportedField& field, RequestFields& fields) {
  const json* const value = fields.try_take(field.name);
  if (value == nullptr || asks_for_nothing(field, *value)) return;
  refuse_field("unsupported_parameter", std::string(field.name),
               fmt::format("'{}' is not supported with this value; leave it out", field.name));
}

}  // namespace

void refuse_unsupported_fields(OpenAiRoute route, RequestFields& fields) {
  for (const UnsupportedField& field : kFields) refuse_unless_neutral(field, fields);
  if (route != OpenAiRoute::kChatCompletions) return;
  // Only the completions endpoint has these fields.
  for (const char* name : {"add_special_tokens", "echo"})
    refuse_unless_neutral({name, is_never}, fields);
}

}  // namespace spillway
