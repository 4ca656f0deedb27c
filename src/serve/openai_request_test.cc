// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_request.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/api_error.h"
#include "serve/bounded_json.h"

namespace spillway {
namespace {

constexpr auto kChat = OpenAiRoute::kChatCompletions;
constexpr auto kText = OpenAiRoute::kCompletions;

OpenAiRequest parse(OpenAiRoute route, const std::string& body) {
  return parse_openai_request(route, parse_json_text(body), UnknownFields::kRefuse);
}

// Returns "code: param" of the refusal.
std::string refusal(OpenAiRoute route, const std::string& body) {
  try {
    parse(route, body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.code_name() + ": " + error.param();
  }
  return "none";
}

std::string with_hi(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) +
         "}";
}
std::string with_prompt(const std::string& fields) { return R"({"prompt":"hi",)" + fields + "}"; }

TEST(OpenAiRequestTest, KnowsItsRoutes) {
  EXPECT_EQ(try_openai_route("/v1/chat/completions"), kChat);
  EXPECT_EQ(try_openai_route("/v1/completions"), kText);
  EXPECT_EQ(try_openai_route("/v1/embeddings"), std::nullopt);
  EXPECT_EQ(try_openai_route("/v1/completions/"), std::nullopt);
}

TEST(OpenAiRequestTest, HasOpenAisDefaults) {
  const OpenAiRequest chat = parse(kChat, with_hi(""));
  EXPECT_EQ(chat.max_tokens, std::nullopt);
  EXPECT_EQ(chat.sampling.temperature, 1.0F);
  EXPECT_EQ(chat.sampling.logprobs, -1);
  EXPECT_EQ(chat.seed, std::nullopt);
  EXPECT_EQ(parse(kText, R"({"prompt":"x"})").max_tokens, 16);
}

TEST(OpenAiRequestTest, ReadsEveryField) {
  const OpenAiRequest request = parse(kChat, R"({
      "model": "m", "max_tokens": 3, "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.25,
      "messages": [{"role": "developer", "content": "Be kind."},
                   {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                   {"role": "assistant", "content": "c", "tool_calls": []}],
      "top_k": 7, "min_p": 0.125, "seed": -1, "stop": ["x", "y"], "presence_penalty": 1,
      "frequency_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"5": -100, "7": 1.5},
      "logprobs": true, "top_logprobs": 4, "n": 1, "ignore_eos": true, "stream": true,
      "stream_options": {"include_usage": true}, "user": "u", "metadata": {"a": "b"}, "tools": [],
      "tool_choice": "none", "response_format": {"type": "text"}, "store": null})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 5);
  ASSERT_EQ(request.messages.size(), 3U);
  EXPECT_EQ(request.messages[0]["role"], "system");
  EXPECT_EQ(request.messages[1]["content"], "a\nb");
  EXPECT_TRUE(request.tools.is_null());
  EXPECT_EQ(request.user, "u");
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.25F);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.125F);
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(request.sampling.presence_penalty, 1.0F);
  EXPECT_EQ(request.sampling.frequency_penalty, -1.0F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(request.sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{5, -100.0F}, {7, 1.5F}}));
  EXPECT_EQ(request.sampling.logprobs, 4);
  EXPECT_TRUE(request.ignore_end && request.stream && request.stream_usage);
}

TEST(OpenAiRequestTest, NullIsNotGiven) {
  const OpenAiRequest request = parse(
      kText, with_prompt(R"("max_tokens":null,"temperature":null,"stop":null,"seed":null,"n":null,
                            "logprobs":null,"stream":null,"suffix":null,"echo":null,"logit_bias":null)"));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1.0F);
}

TEST(OpenAiRequestTest, TakesAPromptInEveryForm) {
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(std::get<std::string>(parse(kText, R"({"prompt":"a"})").prompts[0]), "a");
  EXPECT_EQ(std::get<std::string>(parse(kText, R"({"prompt":["a"]})").prompts[0]), "a");
  EXPECT_EQ(std::get<Ids>(parse(kText, R"({"prompt":[1,2]})").prompts[0]), (Ids{1, 2}));
  EXPECT_EQ(std::get<Ids>(parse(kText, R"({"prompt":[[3]]})").prompts[0]), Ids{3});
  EXPECT_EQ(parse(kText, R"({"prompt":["a","b"]})").prompts.size(), 2U);
  EXPECT_EQ(parse(kText, R"({"prompt":["a",[7]]})").prompts.size(), 2U);
  EXPECT_EQ(refusal(kText, R"({"prompt":["a",5]})"), "invalid_type: prompt");
  EXPECT_EQ(refusal(kText, R"({"prompt":[1,"b"]})"), "invalid_type: prompt");
  EXPECT_EQ(refusal(kText, R"({"prompt":[1,2.5]})"), "invalid_type: prompt");
  EXPECT_EQ(refusal(kText, R"({"prompt":[-1]})"), "invalid_value: prompt[0]");
  EXPECT_EQ(refusal(kText, R"({"prompt":[1,18446744073709551615]})"), "invalid_value: prompt[1]");
  EXPECT_EQ(refusal(kText, R"({"prompt":{}})"), "invalid_type: prompt");
  EXPECT_EQ(refusal(kText, R"({})"), "missing_required_parameter: prompt");
}

TEST(OpenAiRequestTest, NamesTheFieldThatItRefuses) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":-1)", "invalid_value: temperature"},
      {R"("temperature":"hot")", "invalid_type: temperature"},
      {R"("temperature":1e300)", "invalid_value: temperature"},
      {R"("top_p":1.5)", "invalid_value: top_p"},
      {R"("top_k":-2)", "invalid_value: top_k"},
      {R"("top_k":1.5)", "invalid_type: top_k"},
      {R"("min_p":true)", "invalid_type: min_p"},
      {R"("max_tokens":0)", "invalid_value: max_tokens"},
      {R"("max_tokens":-5)", "invalid_value: max_tokens"},
      {R"("max_tokens":99999999999)", "invalid_value: max_tokens"},
      {R"("max_completion_tokens":1.5)", "invalid_type: max_completion_tokens"},
      {R"("max_completion_tokens":1e30)", "invalid_value: max_completion_tokens"},
      {R"("n_predict":-2)", "invalid_value: n_predict"},
      {R"("min_tokens":-1)", "invalid_value: min_tokens"},
      {R"("min_tokens":5,"max_tokens":4)", "invalid_value: min_tokens"},
      {R"("stop_token_ids":5)", "invalid_type: stop_token_ids"},
      {R"("stop_token_ids":["a"])", "invalid_type: stop_token_ids"},
      {R"("stop_token_ids":[1,-1])", "invalid_value: stop_token_ids[1]"},
      {R"("repeat_penalty":0)", "invalid_value: repeat_penalty"},
      {R"("repeat_last_n":-2)", "invalid_value: repeat_last_n"},
      {R"("documents":{})", "invalid_type: documents"},
      {R"("repetition_penalty":0)", "invalid_value: repetition_penalty"},
      {R"("n":129)", "invalid_value: n"},
      {R"("best_of":2)", "unsupported_parameter: best_of"},
      {R"("priority":99)", "invalid_value: priority"},
      {R"("user":5)", "invalid_type: user"},
      {R"("chat_template_kwargs":[])", "invalid_type: chat_template_kwargs"},
      {R"("n":0)", "invalid_value: n"},
      {R"("seed":1.5)", "invalid_type: seed"},
      {R"("seed":1e30)", "invalid_type: seed"},
      {R"("seed":18446744073709551616)", "invalid_type: seed"},
      {R"("seed":-9223372036854775809)", "invalid_type: seed"},
      {R"("stop":5)", "invalid_type: stop"},
      {R"("stop":["a",5])", "invalid_type: stop[1]"},
      {R"("stream":"yes")", "invalid_type: stream"},
      {R"("stream_options":{"x":1})", "unknown_parameter: stream_options.x"},
      {R"("logit_bias":5)", "invalid_type: logit_bias"},
      {R"("logit_bias":[1])", "invalid_type: logit_bias[0]"},
      {R"("logit_bias":[[1,2,3]])", "invalid_type: logit_bias[0]"},
      {R"("logit_bias":[[1,"x"]])", "invalid_type: logit_bias[0]"},
      {R"("logit_bias":[[1,1],["Hello",1]])", "invalid_type: logit_bias[1]"},
      {R"("logit_bias":[[1,true]])", "invalid_type: logit_bias[0]"},
      {R"("logit_bias":{"a":1})", "invalid_value: logit_bias.a"},
      {R"("logit_bias":{"-3":1})", "invalid_value: logit_bias.-3"},
      {R"("logit_bias":{"3":1000})", "invalid_value: logit_bias.3"},
      {R"("logprobs":5)", "invalid_type: logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "invalid_value: top_logprobs"},
      {R"("top_logprobs":2)", "invalid_value: top_logprobs"},
      {R"("tools":{})", "invalid_type: tools"},
      {R"("tools":[{}])", "missing_required_parameter: tools[0].type"},
      {R"("tools":[{"type":"web"}])", "unsupported_parameter: tools[0].type"},
      {R"("tools":[{"type":"function","function":{}}])",
       "missing_required_parameter: tools[0].function.name"},
      {R"("tool_choice":"required")", "unsupported_parameter: tool_choice"},
      {R"("response_format":{"type":"json_object"})", "unsupported_parameter: response_format"},
      {R"("response_format":{"type":5})", "unsupported_parameter: response_format"},
      {R"("reasoning_effort":"high")", "unsupported_parameter: reasoning_effort"},
      {R"("reasoning_effort":"none","verbosity":"medium","moderation":{"model":"m"})", "none"},
      {R"("verbosity":"low")", "unsupported_parameter: verbosity"},
      {R"("prompt_cache_options":{"ttl":"1h"},"prompt_cache_retention":"24h")", "none"},
      {R"("stream":true,"stream_options":{"include_obfuscation":false})", "none"},
      {R"("stream":true,"stream_options":{"include_obfuscation":5})",
       "invalid_type: stream_options.include_obfuscation"},
      {R"("model":5)", "invalid_type: model"},
      {R"("temprature":1)", "unknown_parameter: temprature"},
      {R"("prompt":"x")", "unknown_parameter: prompt"},
      {R"("a\nb":1)", R"(unknown_parameter: a\nb)"},
  };
  for (const auto& [fields, expected] : cases)
    EXPECT_EQ(refusal(kChat, with_hi(fields)), expected) << fields;
  EXPECT_EQ(refusal(kText, with_prompt(R"("logprobs":21)")), "invalid_value: logprobs");
  EXPECT_EQ(refusal(kText, with_prompt(R"("suffix":"x")")), "unsupported_parameter: suffix");
  EXPECT_EQ(refusal(kText, with_prompt(R"("best_of":2)")), "unsupported_parameter: best_of");
  EXPECT_EQ(refusal(kText, with_prompt(R"("best_of":1,"echo":false,"suffix":"")")), "none");
  EXPECT_EQ(refusal(kText, with_prompt(R"("messages":[])")), "unknown_parameter: messages");
  EXPECT_EQ(refusal(kText, "[]"), "invalid_type: body");
  EXPECT_EQ(refusal(kText, "null"), "invalid_type: body");
}

TEST(OpenAiRequestTest, RefusesMessagesThatItCannotRender) {
  const auto messages = [](const std::string& list) {
    return refusal(kChat, R"({"messages":)" + list + "}");
  };
  EXPECT_EQ(messages("[]"), "invalid_value: messages");
  EXPECT_EQ(messages("null"), "missing_required_parameter: messages");
  EXPECT_EQ(messages("{}"), "invalid_type: messages");
  EXPECT_EQ(messages(R"(["hi"])"), "invalid_type: messages[0]");
  EXPECT_EQ(messages(R"([{"role":"user"}])"), "missing_required_parameter: messages[0].content");
  EXPECT_EQ(messages(R"([{"content":"x"}])"), "missing_required_parameter: messages[0].role");
  EXPECT_EQ(messages(R"([{"role":"user","content":5}])"), "invalid_type: messages[0].content");
  EXPECT_EQ(messages(R"([{"role":"narrator","content":"x"}])"),
            "unsupported_parameter: messages[0].role");
  EXPECT_EQ(messages(R"([{"role":"user","content":"x","name":5}])"),
            "invalid_type: messages[0].name");
  EXPECT_EQ(messages(R"([{"role":"user","content":"x","tool_calls":[{}]}])"),
            "invalid_value: messages[0].tool_calls");
  EXPECT_EQ(messages(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])"),
            "missing_required_parameter: messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(messages(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
            "unsupported_parameter: messages[0].content[0].type");
  EXPECT_EQ(messages(R"([{"role":"user","content":[{"type":"text"}]}])"),
            "missing_required_parameter: messages[0].content[0].text");
  EXPECT_EQ(messages(R"([{"role":"user","content":"x","mood":"good"}])"),
            "unknown_parameter: messages[0].mood");
}

// Templates want arguments as objects, and tools in their order.
TEST(OpenAiRequestTest, TakesToolsAndWhatTheyAnswered) {
  const OpenAiRequest request = parse(kChat, R"({
      "messages": [{"role": "user", "content": "Is it raining?"},
                   {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [
                       {"id": "1", "type": "function",
                        "function": {"name": "weather", "arguments": "{\"where\": \"here\"}"}}]},
                   {"role": "tool", "tool_call_id": "1", "name": "weather", "content": "rain"}],
      "tools": [{"type": "function", "function": {"name": "weather", "zone": 1, "area": 2}}],
      "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_EQ(request.messages[1]["content"], "");
  EXPECT_EQ(request.messages[1]["tool_calls"][0]["function"]["arguments"]["where"], "here");
  EXPECT_EQ(request.messages[2]["tool_call_id"], "1");
  EXPECT_EQ(request.tools.dump(),
            R"([{"type":"function","function":{"name":"weather","zone":1,"area":2}}])");
  EXPECT_EQ(request.template_variables["enable_thinking"], false);
}

TEST(OpenAiRequestTest, AsksForSeveralChoicesAndForThePrompt) {
  const OpenAiRequest request =
      parse(kText, with_prompt(R"("n":3,"best_of":3,"echo":true,"max_tokens":0,"priority":-2)"));
  EXPECT_EQ(request.choices, 3);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.priority, -2);
}

// Looking up a member takes longer with each further member, so their number is bounded.
TEST(OpenAiRequestTest, BoundsTheMembersOfAnObject) {
  const auto object = [](int members) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += fmt::format("{}\"a{}\":{{}}", i > 0 ? "," : "", i);
    return text + "}";
  };
  EXPECT_NO_THROW(parse_json_text(object(1024)));
  EXPECT_THROW(parse_json_text(object(1025)), ApiError);
  EXPECT_NO_THROW(parse_json_text("[" + object(1000) + "," + object(1000) + "]"));
}

TEST(OpenAiRequestTest, RefusesTextThatIsNotJson) {
  std::string nested(100'000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("nonsense"), std::string("{} {}"),
        std::string("{\"a\":1e999}"), std::string("\"\xff\""), std::string("{\"a\":\"\x01\"}"),
        std::string("[1,]"), nested, nested + std::string(100'000, ']'), std::string("1\0", 2)}) {
    try {
      parse_json_text(text);
      ADD_FAILURE() << text.substr(0, 40);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.code_name(), "invalid_json");
      EXPECT_EQ(std::string(error.what()).find_first_of("\n\xff"), std::string::npos);
    }
  }
  EXPECT_NO_THROW(parse_json_text(std::string(60, '[') + std::string(60, ']')));
}

TEST(OpenAiRequestTest, ARefusalIsWhatTheAssistantSaid) {
  const auto contents = [](const std::string& message) {
    const OpenAiRequest request =
        parse(OpenAiRoute::kChatCompletions, R"({"messages":[)" + message + "]}");
    return request.messages[0]["content"].get<std::string>();
  };
  EXPECT_EQ(contents(R"({"role":"assistant","content":null,"refusal":"No."})"), "No.");
  EXPECT_EQ(contents(R"({"role":"assistant","content":"Yes.","refusal":null})"), "Yes.");
  EXPECT_EQ(contents(R"({"role":"assistant","content":[{"type":"refusal","refusal":"Never."}]})"),
            "Never.");
  EXPECT_EQ(refusal(OpenAiRoute::kChatCompletions,
                    R"({"messages":[{"role":"user","content":"x","refusal":"No."}]})"),
            "invalid_value: messages[0].refusal");
}

TokenizeRequest parse_tokenize(const std::string& body,
                               UnknownFields unknown = UnknownFields::kRefuse) {
  return parse_tokenize_request(parse_json_text(body), unknown);
}

TEST(OpenAiRequestTest, TokenizesConversationsAsVllmDoes) {
  const TokenizeRequest chat = parse_tokenize(
      R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})");
  ASSERT_TRUE(chat.chat);
  EXPECT_EQ(chat.chat->messages.size(), 1U);
  EXPECT_FALSE(chat.chat->add_generation_prompt);
  EXPECT_TRUE(parse_tokenize(R"({"messages":[{"role":"user","content":"x"}]})")
                  .chat->add_generation_prompt);
  EXPECT_FALSE(parse_tokenize(R"({"prompt":"x"})").chat);
  EXPECT_THROW(parse_tokenize(R"({"prompt":"x","messages":[{"role":"user","content":"x"}]})"),
               ApiError);
  EXPECT_THROW(parse_tokenize(R"({"prompt":"x","add_generation_prompt":true})"), ApiError);
  EXPECT_EQ(
      parse_tokenize(R"({"prompt":"x","return_token_strs":true})", UnknownFields::kIgnore).ignored,
      std::vector<std::string>{"return_token_strs"});
}

}  // namespace
}  // namespace spillway
