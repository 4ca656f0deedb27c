// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_response.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/served_model.h"
#include "text/test_vocabulary.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr TokenId kEnd = 256;  // <|end|> of byte_vocabulary()

OpenAiRequest parse(OpenAiRoute route, const std::string& body) {
  return parse_openai_request(route, parse_json_text(body));
}

Answer make_answer(const std::string& text, std::vector<TokenId> ids, FinishReason finish) {
  Answer answer;
  answer.text = text;
  answer.ids = std::move(ids);
  answer.finish = finish;
  return answer;
}

// Code of the refusal.
std::string refusal(const ServedModel& model, const OpenAiRequest& request) {
  try {
    model.to_generation(request, 0);
  } catch (const ApiError& error) {
    return error.code_name();
  }
  return "none";
}

TEST(OpenAiResponseTest, PutsEventsTogether) {
  Answer answer;
  EXPECT_FALSE(
      answer.add({.id = {}, .token = 5, .text = "a", .logprobs = {}, .finish = {}, .error = {}}));
  EXPECT_FALSE(
      answer.add({.id = {}, .token = 6, .text = "", .logprobs = {}, .finish = {}, .error = {}}));
  EXPECT_TRUE(answer.add({.id = {},
                          .token = {},
                          .text = "b",
                          .logprobs = {},
                          .finish = FinishReason::kLength,
                          .error = {}}));
  EXPECT_EQ(answer.text, "ab");
  EXPECT_EQ(answer.ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST(OpenAiResponseTest, WritesAChatCompletion) {
  const Tokenizer tokenizer(byte_vocabulary());
  const auto request =
      parse(OpenAiRoute::kChatCompletions, R"({"messages":[{"role":"user","content":"x"}]})");
  const Answer answer = make_answer("Hi \"you\"", {'H', 'i', kEnd}, FinishReason::kStop);
  EXPECT_EQ(
      json_line(answer_body({"abc", 17, "m"}, request, 4, answer, &tokenizer)),
      R"({"id":"chatcmpl-abc","object":"chat.completion","created":17,"model":"m","choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"Hi \"you\"","refusal":null},)"
      R"("logprobs":null,"finish_reason":"stop"}],)"
      R"("usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}})");
}

TEST(OpenAiResponseTest, WritesATextCompletionWithIdsWhereThereIsNoText) {
  const auto request = parse(OpenAiRoute::kCompletions, R"({"prompt":[1]})");
  const Answer answer = make_answer("", {3, 4}, FinishReason::kLength);
  const json body = answer_body({"abc", 17, "m"}, request, 1, answer, nullptr);
  EXPECT_EQ(body["id"], "cmpl-abc");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], "");
  EXPECT_EQ(body["choices"][0]["token_ids"], (json{3, 4}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST(OpenAiResponseTest, WritesLogprobsWithoutTheEndToken) {
  const Tokenizer tokenizer(byte_vocabulary());
  Answer answer = make_answer("H\xEF\xBF\xBD", {'H', 0xC3, kEnd}, FinishReason::kStop);
  answer.logprobs = {{-0.5F, {{'H', -0.5F}, {'J', -1.5F}}}, {-0.25F, {}}, {-0.125F, {}}};

  const auto chat =
      parse(OpenAiRoute::kChatCompletions,
            R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":2})");
  const json shown = json(answer_body({}, chat, 1, answer, &tokenizer))["choices"][0]["logprobs"];
  EXPECT_TRUE(shown.contains("refusal") && shown["refusal"].is_null());
  const json content = shown["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0], json::parse(R"({"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[
      {"token":"H","logprob":-0.5,"bytes":[72]},{"token":"J","logprob":-1.5,"bytes":[74]}]})"));
  EXPECT_EQ(content[1]["bytes"], json{195}) << "half a character";

  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"x","logprobs":2})");
  const json logprobs =
      json(answer_body({}, text, 1, answer, &tokenizer))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "H");
  EXPECT_EQ(logprobs["token_logprobs"], (json{-0.5, -0.25}));
  EXPECT_EQ(logprobs["top_logprobs"][0], json::parse(R"({"H":-0.5,"J":-1.5})"));
  EXPECT_EQ(logprobs["text_offset"], (json{0, 1}));
}

TEST(OpenAiResponseTest, WritesANumberWhereALogprobIsInfinite) {
  const Tokenizer tokenizer(byte_vocabulary());
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  Answer answer = make_answer("H", {'H'}, FinishReason::kLength);
  answer.logprobs = {{kNever, {{'J', kNever}}}};
  const auto chat = parse(OpenAiRoute::kChatCompletions,
                          R"({"messages":[{"role":"user","content":"x"}],"logprobs":true})");
  const json entry =
      json(answer_body({}, chat, 1, answer, &tokenizer))["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["logprob"], -9999);
  EXPECT_EQ(entry["top_logprobs"][0]["logprob"], -9999);
  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"x","logprobs":1})");
  const json logprobs =
      json(answer_body({}, text, 1, answer, &tokenizer))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"], json{-9999});
  EXPECT_EQ(logprobs["top_logprobs"][0]["J"], -9999);
}

TEST(OpenAiResponseTest, WritesAFingerprintWhereThereIsOne) {
  const Tokenizer tokenizer(byte_vocabulary());
  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"x"})");
  const Answer answer = make_answer("H", {'H'}, FinishReason::kLength);
  EXPECT_FALSE(answer_body({}, text, 1, answer, &tokenizer).contains("system_fingerprint"));
  EXPECT_EQ(
      answer_body({"abc", 17, "m", "fp_1"}, text, 1, answer, &tokenizer)["system_fingerprint"],
      "fp_1");
}

TEST(OpenAiResponseTest, WritesErrorsAsOpenAiDoes) {
  EXPECT_EQ(
      json_line(error_body(ApiError(400, "invalid_value", "top_p", "too much"))),
      R"({"error":{"message":"too much","type":"invalid_request_error","param":"top_p","code":"invalid_value"}})");
  EXPECT_EQ(
      json_line(error_body(ApiError(500, "server_error", "", "oh"))),
      R"({"error":{"message":"oh","type":"server_error","param":null,"code":"server_error"}})");
}

TEST(ServedModelTest, EncodesTextIdsAndConversations) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.chat_template =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + "
      "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>assistant\\n' }}"
      "{% endif %}";
  const Tokenizer tokenizer(std::move(vocabulary));
  const ServedModel model("m", &tokenizer, 1000);
  const auto text = model.to_generation(
      parse(OpenAiRoute::kCompletions,
            R"({"prompt":"ab","seed":9,"max_tokens":7,"stop":"x","ignore_eos":true})"),
      5);
  EXPECT_EQ(text.prompt, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(text.sampling.seed, 9U);
  EXPECT_EQ(text.max_tokens, 7);
  EXPECT_EQ(text.stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(text.ignore_end);
  const auto ids = model.to_generation(parse(OpenAiRoute::kCompletions, R"({"prompt":[7,8]})"), 5);
  EXPECT_EQ(ids.prompt, (std::vector<TokenId>{7, 8}));
  EXPECT_EQ(ids.sampling.seed, 5U);
  const auto chat = model.to_generation(
      parse(OpenAiRoute::kChatCompletions, R"({"messages":[{"role":"user","content":"Hi"}]})"), 5);
  EXPECT_EQ(tokenizer.decode(chat.prompt),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ServedModelTest, RefusesWhatTheModelCannotDo) {
  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"abc"})");
  const auto ids = parse(OpenAiRoute::kCompletions, R"({"prompt":[1,2,3]})");
  const auto stop = parse(OpenAiRoute::kCompletions, R"({"prompt":[1,2,3],"stop":"x"})");
  const auto chat =
      parse(OpenAiRoute::kChatCompletions, R"({"messages":[{"role":"user","content":"x"}]})");
  const ServedModel without("m", nullptr, 4);
  EXPECT_EQ(refusal(without, text), "unsupported_value");
  EXPECT_EQ(refusal(without, chat), "unsupported_value");
  EXPECT_EQ(refusal(without, stop), "unsupported_value");
  EXPECT_EQ(refusal(without, ids), "none");
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(refusal(ServedModel("m", &tokenizer, 4), chat), "unsupported_value") << "no template";
  EXPECT_EQ(refusal(ServedModel("m", &tokenizer, 4), text), "none");
  EXPECT_EQ(refusal(ServedModel("m", &tokenizer, 3), text), "context_length_exceeded");
}

}  // namespace
}  // namespace spillway
