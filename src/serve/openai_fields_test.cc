// SPDX-License-Identifier: Apache-2.0
// Bodies that clients of vLLM, llama-server and LiteLLM send must be accepted unchanged.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/api_error.h"
#include "serve/bounded_json.h"
#include "serve/openai_request.h"

namespace spillway {
namespace {

using Names = std::vector<std::string>;
constexpr auto kChat = OpenAiRoute::kChatCompletions;
constexpr auto kText = OpenAiRoute::kCompletions;

OpenAiRequest parse(OpenAiRoute route, const std::string& fields,
                    UnknownFields unknown = UnknownFields::kIgnore) {
  const std::string begin =
      route == kChat ? R"({"messages":[{"role":"user","content":"hi"}])" : R"({"prompt":"hi")";
  return parse_openai_request(
      route, parse_json_text(begin + (fields.empty() ? "" : "," + fields) + "}"), unknown);
}

OpenAiRequest parse_message(const std::string& message) {
  return parse_openai_request(kChat, parse_json_text(R"({"messages":[)" + message + "]}"),
                              UnknownFields::kIgnore);
}

std::string refusal(OpenAiRoute route, const std::string& fields,
                    UnknownFields unknown = UnknownFields::kIgnore) {
  try {
    parse(route, fields, unknown);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.code_name() + ": " + error.param();
  }
  return "none";
}

TEST(OpenAiFieldsTest, IgnoresAndNamesUnknownFields) {
  EXPECT_EQ(parse(kChat, R"("cache_prompt":true,"temprature":1)").ignored,
            (Names{"cache_prompt", "temprature"}));
  EXPECT_EQ(parse(kText, R"("cache_prompt":true,"messages":[])").ignored,
            (Names{"cache_prompt", "messages"}));
  EXPECT_EQ(parse(kText, R"("temperature":1)").ignored, Names{});
  EXPECT_EQ(refusal(kChat, R"("cache_prompt":true)", UnknownFields::kRefuse),
            "unknown_parameter: cache_prompt");
}

TEST(OpenAiFieldsTest, NullAsksForNothing) {
  for (const UnknownFields unknown : {UnknownFields::kIgnore, UnknownFields::kRefuse})
    EXPECT_EQ(parse(kChat, R"("unknown_field":null,"grammar":null)", unknown).ignored, Names{});
}

TEST(OpenAiFieldsTest, NamesNestedFieldsOnceAndWithoutIndices) {
  const OpenAiRequest request =
      parse_openai_request(kChat, parse_json_text(R"({"stream_options":{"x":1},"messages":[
          {"role":"user","id":"a","content":[{"type":"text","text":"x","cache_control":{}}]},
          {"role":"user","id":"b","content":[{"type":"text","text":"y","cache_control":{}}]}]})"),
                           UnknownFields::kIgnore);
  EXPECT_EQ(request.ignored,
            (Names{"stream_options.x", "messages[].content[].cache_control", "messages[].id"}));
}

TEST(OpenAiFieldsTest, BoundsTheNamesOfIgnoredFields) {
  std::string fields;
  for (int i = 0; i < 500; ++i)
    fields += (i > 0 ? ",\"x" : "\"x") + std::to_string(i) + std::string(500, 'y') + "\":1";
  const Names names = parse(kChat, fields).ignored;
  ASSERT_EQ(names.size(), IgnoredFields::kMostNames);
  for (const std::string& name : names) EXPECT_LT(name.size(), 100U);
  EXPECT_EQ(parse(kChat, R"("a\nb":1)").ignored, Names{R"(a\nb)"});
}

// LiteLLM sends back the fields of answers, and clients add others that no template uses.
TEST(OpenAiFieldsTest, TakesMessagesWithExtras) {
  const OpenAiRequest request = parse_message(R"({"role":"assistant","content":"Hi.",
      "tool_calls":null,"function_call":null,"audio":null,"annotations":[],
      "provider_specific_fields":{"refusal":null},"timestamp":1,"id":"m"})");
  EXPECT_EQ(request.messages[0].dump(), R"({"role":"assistant","content":"Hi."})");
  EXPECT_EQ(request.ignored, (Names{"messages[].provider_specific_fields", "messages[].timestamp",
                                    "messages[].id"}));
}

TEST(OpenAiFieldsTest, TakesAContentThatIsNull) {
  for (const char* role : {"user", "assistant", "system", "tool"}) {
    const OpenAiRequest request =
        parse_message(R"({"role":")" + std::string(role) + R"(","content":null})");
    EXPECT_EQ(request.messages[0]["content"], "") << role;
  }
}

TEST(OpenAiFieldsTest, TakesArgumentsAsAnObject) {
  const auto arguments = [](const std::string& given) {
    return parse_message(R"({"role":"assistant","content":null,"tool_calls":[{"id":"1",
        "type":"function","function":{"name":"f","arguments":)" +
                         given + "}}]}")
        .messages[0]["tool_calls"][0]["function"]["arguments"];
  };
  EXPECT_EQ(arguments(R"({"where":"here"})")["where"], "here");
  EXPECT_EQ(arguments(R"("{\"where\":\"here\"}")")["where"], "here");
  EXPECT_THROW(arguments("5"), ApiError);
}

TEST(OpenAiFieldsTest, TakesReasoningByBothNames) {
  const auto reasoning = [](const std::string& fields) {
    return parse_message(R"({"role":"assistant","content":"x",)" + fields + "}")
        .messages[0]["reasoning_content"];
  };
  EXPECT_EQ(reasoning(R"("reasoning":"Hm.")"), "Hm.");
  EXPECT_EQ(reasoning(R"("reasoning":"Hm.","reasoning_content":"Well.")"), "Well.");
}

TEST(OpenAiFieldsTest, KnowsTheLimitByAllItsNames) {
  for (const OpenAiRoute route : {kChat, kText}) {
    EXPECT_EQ(parse(route, R"("n_predict":5)").max_tokens, 5);
    EXPECT_EQ(parse(route, R"("max_completion_tokens":6)").max_tokens, 6);
    EXPECT_EQ(parse(route, R"("max_completion_tokens":6,"n_predict":5,"max_tokens":4)").max_tokens,
              6);
    for (const char* name : {"max_tokens", "n_predict", "max_completion_tokens"})
      EXPECT_EQ(parse(route, '"' + std::string(name) + R"(":-1)").max_tokens, std::nullopt) << name;
  }
  EXPECT_EQ(parse(kText, R"("n_predict":0)").max_tokens, 0);
}

TEST(OpenAiFieldsTest, TakesWholeNumbersHoweverTheyAreWritten) {
  const OpenAiRequest request =
      parse(kChat, R"("max_tokens":2.0,"n":3.0,"top_k":4e0,"seed":5.0,"stop_token_ids":[6.0])");
  EXPECT_EQ(request.max_tokens, 2);
  EXPECT_EQ(request.choices, 3);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.seed, 5U);
  EXPECT_EQ(request.stop_ids, std::vector<TokenId>{6});
  EXPECT_EQ(refusal(kChat, R"("max_tokens":2.5)"), "invalid_type: max_tokens");
  EXPECT_EQ(refusal(kChat, R"("seed":0.5)"), "invalid_type: seed");
  EXPECT_EQ(parse(kChat, R"("seed":18446744073709551615)").seed, ~uint64_t{0});
}

TEST(OpenAiFieldsTest, TakesStreamOptionsWithoutAStream) {
  const OpenAiRequest request =
      parse(kChat, R"("stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(request.stream_usage && request.continuous_usage);
  EXPECT_EQ(request.ignored, Names{});
}

TEST(OpenAiFieldsTest, TakesManyStopsWithinBounds) {
  const auto stops = [](size_t count, size_t bytes) {
    nlohmann::json list = nlohmann::json::array();
    for (size_t i = 0; i < count; ++i) list.push_back(std::string(bytes, 'x'));
    return "\"stop\":" + list.dump();
  };
  EXPECT_EQ(parse(kChat, stops(1024, 10)).stop.size(), 1024U);
  EXPECT_EQ(refusal(kChat, stops(1025, 1)), "invalid_value: stop");
  EXPECT_EQ(refusal(kChat, stops(2, 40'000)), "invalid_value: stop");
  EXPECT_EQ(refusal(kChat, "\"stop\":\"" + std::string(100'000, 'x') + '"'), "invalid_value: stop");
}

TEST(OpenAiFieldsTest, ReadsWhatEndsAnAnswer) {
  const OpenAiRequest request = parse(kText, R"("min_tokens":3,"stop_token_ids":[5,7])");
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_EQ(request.stop_ids, (std::vector<TokenId>{5, 7}));
  EXPECT_EQ(refusal(kText, R"("min_tokens":17)"), "invalid_value: min_tokens") << "16 by default";
  EXPECT_EQ(parse(kChat, R"("min_tokens":17)").min_tokens, 17);
  EXPECT_EQ(parse(kChat, R"("stop_token_ids":null,"min_tokens":null)").ignored, Names{});
}

TEST(OpenAiFieldsTest, ARepeatPenaltyLooksAtTheLastTokens) {
  const auto sampling = [](const std::string& fields) { return parse(kChat, fields).sampling; };
  EXPECT_EQ(sampling(R"("repetition_penalty":1.5)").repetition_window, 0);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.5)").repetition_penalty, 1.5F);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.5)").repetition_window, 64);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.5,"repeat_last_n":-1)").repetition_window, 0);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.5,"repeat_last_n":9)").repetition_window, 9);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.5,"repeat_last_n":0)").repetition_penalty, 1.0F);
  EXPECT_EQ(sampling(R"("repetition_penalty":1.5,"repeat_last_n":9)").repetition_window, 9);
  const SamplingParams both = sampling(R"("repetition_penalty":1.5,"repeat_penalty":1.1)");
  EXPECT_EQ(both.repetition_penalty, 1.5F);
  EXPECT_EQ(both.repetition_window, 0);
}

TEST(OpenAiFieldsTest, TakesLlamaServersBiases) {
  EXPECT_EQ(parse(kChat, R"("logit_bias":[[5,1.5],[7,false]])").sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{5, 1.5F}, {7, -1000.0F}}));
}

TEST(OpenAiFieldsTest, ReadsHowAPromptIsMade) {
  EXPECT_FALSE(parse(kText, R"("add_special_tokens":false)").add_special);
  EXPECT_FALSE(parse(kChat, R"("add_generation_prompt":false)").add_generation_prompt);
  const OpenAiRequest request =
      parse(kChat, R"("documents":[{"text":"x"}],"chat_template_kwargs":{"a":1})");
  EXPECT_EQ(request.template_variables.dump(), R"({"a":1,"documents":[{"text":"x"}]})");
}

struct PeerField {
  const char* name;
  const char* neutral;  // value with a neutral meaning, as JSON
  const char* asking;   // value that must be refused; null: none is
};

// Fields of vLLM's and llama-server's documentation that OpenAI lacks, each with a neutral value
// and one that cannot be obeyed.
constexpr PeerField kPeerFields[] = {
    // vLLM: sampling
    {"use_beam_search", "false", "true"},
    {"top_k", "-1", nullptr},
    {"min_p", "0", nullptr},
    {"repetition_penalty", "1", nullptr},
    {"watermarking", "false", "true"},
    {"length_penalty", "1.0", nullptr},
    {"stop_token_ids", "[]", nullptr},
    {"include_stop_str_in_output", "false", "true"},
    {"ignore_eos", "false", nullptr},
    {"min_tokens", "0", nullptr},
    {"skip_special_tokens", "true", "false"},
    {"spaces_between_special_tokens", "true", nullptr},
    {"truncate_prompt_tokens", "-1", "10"},
    {"truncation_side", "\"left\"", nullptr},
    {"prompt_logprobs", "null", "0"},
    {"logprob_token_ids", "null", "[5]"},
    {"allowed_token_ids", "null", "[5]"},
    {"bad_words", "[]", "[\"x\"]"},
    // vLLM: the rest
    {"echo", "false", nullptr},
    {"add_generation_prompt", "true", nullptr},
    {"continue_final_message", "false", "true"},
    {"documents", "[]", nullptr},
    {"chat_template", "null", "\"x\""},
    {"chat_template_kwargs", "{}", nullptr},
    {"media_io_kwargs", "{}", nullptr},
    {"mm_processor_kwargs", "{}", nullptr},
    {"structured_outputs", "null", "{\"regex\":\"a\"}"},
    {"guided_json", "null", "{\"type\":\"object\"}"},
    {"guided_regex", "null", "\"a+\""},
    {"guided_choice", "null", "[\"a\"]"},
    {"guided_grammar", "null", "\"root ::= a\""},
    {"guided_decoding_backend", "null", nullptr},
    {"guided_whitespace_pattern", "null", nullptr},
    {"prompt_embeds", "null", "\"AAAA\""},
    {"priority", "0", nullptr},
    {"request_id", "\"x\"", nullptr},
    {"session_id", "\"x\"", nullptr},
    {"return_tokens_as_token_ids", "false", "true"},
    {"return_token_ids", "false", nullptr},
    {"routed_experts_prompt_start", "0", nullptr},
    {"return_token_offsets", "false", nullptr},
    {"return_prompt_text", "false", nullptr},
    {"return_mm_kwargs", "true", nullptr},
    {"cache_salt", "\"x\"", nullptr},
    {"kv_transfer_params", "null", nullptr},
    {"ec_transfer_params", "null", nullptr},
    {"vllm_xargs", "{}", nullptr},
    {"repetition_detection", "null", "{\"max_pattern_size\":5}"},
    {"thinking_token_budget", "-1", "100"},
    {"include_reasoning", "true", "false"},
    {"stream_interval", "1", nullptr},
    // llama-server
    {"dynatemp_range", "0", "0.5"},
    {"dynatemp_exponent", "1", nullptr},
    {"n_predict", "-1", nullptr},
    {"n_indent", "0", "2"},
    {"n_keep", "0", nullptr},
    {"n_discard", "0", nullptr},
    {"n_cmpl", "1", nullptr},
    {"n_cache_reuse", "0", nullptr},
    {"typical_p", "1.0", "0.5"},
    {"repeat_penalty", "1.1", nullptr},
    {"repeat_last_n", "64", nullptr},
    {"dry_multiplier", "0.0", "0.8"},
    {"dry_base", "1.75", nullptr},
    {"dry_allowed_length", "2", nullptr},
    {"dry_penalty_last_n", "-1", nullptr},
    {"dry_sequence_breakers", "[\"*\"]", nullptr},
    {"xtc_probability", "0.0", "0.5"},
    {"xtc_threshold", "0.1", nullptr},
    {"mirostat", "0", "2"},
    {"mirostat_tau", "5.0", nullptr},
    {"mirostat_eta", "0.1", nullptr},
    {"grammar", "\"\"", "\"root ::= a\""},
    {"json_schema", "null", "{}"},
    {"n_probs", "0", "5"},
    {"min_keep", "0", "1"},
    {"t_max_predict_ms", "0", "100"},
    {"id_slot", "-1", nullptr},
    {"cache_prompt", "true", nullptr},
    {"return_tokens", "false", nullptr},
    {"samplers", "[\"top_k\"]", nullptr},
    {"timings_per_token", "false", nullptr},
    {"return_progress", "false", nullptr},
    {"sse_ping_interval", "-1", nullptr},
    {"post_sampling_probs", "false", "true"},
    {"response_fields", "[]", nullptr},
    {"lora", "[]", "[{\"id\":0,\"scale\":1}]"},
    {"top_n_sigma", "-1.0", "1.0"},
    {"reasoning_format", "\"none\"", nullptr},
    {"reasoning_control", "false", nullptr},
    {"parse_tool_calls", "false", nullptr},
    {"speculative.n_max", "16", nullptr},
};

TEST(OpenAiFieldsTest, TakesEveryFieldOfVllmsAndLlamaServersDocumentation) {
  for (const auto& [name, neutral, asking] : kPeerFields) {
    for (const OpenAiRoute route : {kChat, kText}) {
      const std::string field = '"' + std::string(name) + "\":";
      EXPECT_EQ(refusal(route, field + neutral), "none") << name;
      if (asking == nullptr) continue;
      EXPECT_EQ(refusal(route, field + asking), "unsupported_parameter: " + std::string(name));
    }
  }
}

TEST(OpenAiFieldsTest, ValuesThatAskForNothingAreNotNamed) {
  for (const char* fields :
       {R"("use_beam_search":false,"skip_special_tokens":true,"mirostat":0,"echo":false)",
        R"("min_tokens":0,"typical_p":1,"grammar":"","bad_words":[],"stop_token_ids":[])"}) {
    EXPECT_EQ(parse(kChat, fields, UnknownFields::kRefuse).ignored, Names{}) << fields;
  }
  EXPECT_EQ(refusal(kChat, R"("echo":true)"), "unsupported_parameter: echo");
  EXPECT_EQ(refusal(kChat, R"("add_special_tokens":true)"),
            "unsupported_parameter: add_special_tokens");
}

}  // namespace
}  // namespace spillway
