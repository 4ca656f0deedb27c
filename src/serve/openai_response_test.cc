// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_response.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "serve/bounded_json.h"
#include "serve/completion.h"
#include "serve/served_model.h"
#include "text/test_vocabulary.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr TokenId kEnd = 256;         // <|end|> of byte_vocabulary()
constexpr int64_t kVocabulary = 260;  // size of the model's vocabulary, larger than the tokenizer's

OpenAiRequest parse(OpenAiRoute route, const std::string& body) {
  return parse_openai_request(route, parse_json_text(body), UnknownFields::kRefuse);
}

Choice make_choice(const std::string& text, std::vector<TokenId> ids, FinishReason finish) {
  Choice answer;
  answer.text = text;
  answer.ids = std::move(ids);
  answer.finish = finish;
  return answer;
}

GenerationEvent make_event(std::optional<TokenId> token, const std::string& text,
                           std::optional<FinishReason> finish = std::nullopt) {
  GenerationEvent event;
  event.token = token;
  event.text = text;
  event.finish = finish;
  return event;
}

// Returns the code of the refusal.
std::string refusal(const ServedModel& model, const OpenAiRequest& request) {
  try {
    Completion(request, model, 0);
  } catch (const ApiError& error) {
    return error.code_name();
  }
  return "none";
}

TEST(OpenAiResponseTest, PutsEventsTogether) {
  Choice answer;
  EXPECT_FALSE(answer.add(make_event(5, "a")));
  EXPECT_FALSE(answer.add(make_event(6, "")));
  EXPECT_TRUE(answer.add(make_event(std::nullopt, "b", FinishReason::kLength)));
  EXPECT_EQ(answer.text, "ab");
  EXPECT_EQ(answer.ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST(OpenAiResponseTest, WritesAChatCompletion) {
  const Tokenizer tokenizer(byte_vocabulary());
  const auto request =
      parse(OpenAiRoute::kChatCompletions, R"({"messages":[{"role":"user","content":"x"}]})");
  const Choice answer = make_choice("Hi \"you\"", {'H', 'i', kEnd}, FinishReason::kStop);
  EXPECT_EQ(json_line(answer_body({"abc", 17, "m"}, request, {answer},
                                  {.prompt_tokens = 4, .completion_tokens = answer.ids.size()},
                                  &tokenizer)),
            R"({"id":"abc","object":"chat.completion","created":17,"model":"m","choices":[)"
            R"({"index":0,"message":{"role":"assistant","content":"Hi \"you\"","refusal":null},)"
            R"("logprobs":null,"finish_reason":"stop"}],)"
            R"("usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}})");
}

TEST(OpenAiResponseTest, WritesATextCompletionWithIdsWhereThereIsNoText) {
  const auto request = parse(OpenAiRoute::kCompletions, R"({"prompt":[1]})");
  const Choice answer = make_choice("", {3, 4}, FinishReason::kLength);
  const json body =
      answer_body({"abc", 17, "m"}, request, {answer},
                  {.prompt_tokens = 1, .completion_tokens = answer.ids.size()}, nullptr);
  EXPECT_EQ(body["id"], "abc");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], "");
  EXPECT_EQ(body["choices"][0]["token_ids"], (json{3, 4}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST(OpenAiResponseTest, WritesLogprobsWithoutTheEndToken) {
  const Tokenizer tokenizer(byte_vocabulary());
  Choice answer = make_choice("H\xEF\xBF\xBD", {'H', 0xC3, kEnd}, FinishReason::kStop);
  answer.logprobs = {{-0.5F, {{'H', -0.5F}, {'J', -1.5F}}}, {-0.25F, {}}, {-0.125F, {}}};

  const auto chat =
      parse(OpenAiRoute::kChatCompletions,
            R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":2})");
  const json shown = json(answer_body({}, chat, {answer},
                                      {.prompt_tokens = 1, .completion_tokens = answer.ids.size()},
                                      &tokenizer))["choices"][0]["logprobs"];
  EXPECT_TRUE(shown.contains("refusal") && shown["refusal"].is_null());
  const json content = shown["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0], json::parse(R"({"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[
      {"token":"H","logprob":-0.5,"bytes":[72]},{"token":"J","logprob":-1.5,"bytes":[74]}]})"));
  EXPECT_EQ(content[1]["bytes"], json{195}) << "half a character";

  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"x","logprobs":2})");
  const json logprobs = json(
      answer_body({}, text, {answer}, {.prompt_tokens = 1, .completion_tokens = answer.ids.size()},
                  &tokenizer))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "H");
  EXPECT_EQ(logprobs["token_logprobs"], (json{-0.5, -0.25}));
  EXPECT_EQ(logprobs["top_logprobs"][0], json::parse(R"({"H":-0.5,"J":-1.5})"));
  EXPECT_EQ(logprobs["text_offset"], (json{0, 1}));
}

TEST(OpenAiResponseTest, WritesANumberWhereALogprobIsInfinite) {
  const Tokenizer tokenizer(byte_vocabulary());
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  Choice answer = make_choice("H", {'H'}, FinishReason::kLength);
  answer.logprobs = {{kNever, {{'J', kNever}}}};
  const auto chat = parse(OpenAiRoute::kChatCompletions,
                          R"({"messages":[{"role":"user","content":"x"}],"logprobs":true})");
  const json entry = json(answer_body({}, chat, {answer},
                                      {.prompt_tokens = 1, .completion_tokens = answer.ids.size()},
                                      &tokenizer))["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["logprob"], -9999);
  EXPECT_EQ(entry["top_logprobs"][0]["logprob"], -9999);
  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"x","logprobs":1})");
  const json logprobs = json(
      answer_body({}, text, {answer}, {.prompt_tokens = 1, .completion_tokens = answer.ids.size()},
                  &tokenizer))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"], json{-9999});
  EXPECT_EQ(logprobs["top_logprobs"][0]["J"], -9999);
}

TEST(OpenAiResponseTest, WritesAFingerprintWhereThereIsOne) {
  const Tokenizer tokenizer(byte_vocabulary());
  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"x"})");
  const Choice answer = make_choice("H", {'H'}, FinishReason::kLength);
  EXPECT_FALSE(answer_body({}, text, {answer},
                           {.prompt_tokens = 1, .completion_tokens = answer.ids.size()}, &tokenizer)
                   .contains("system_fingerprint"));
  EXPECT_EQ(answer_body({"abc", 17, "m", "fp_1"}, text, {answer},
                        {.prompt_tokens = 1, .completion_tokens = answer.ids.size()},
                        &tokenizer)["system_fingerprint"],
            "fp_1");
}

TEST(OpenAiResponseTest, SaysHowMuchOfAPromptWasNotComputed) {
  const Tokenizer tokenizer(byte_vocabulary());
  const ServedModel model("m", &tokenizer, {.max_sequence_tokens = 100, .vocab_size = kVocabulary});
  Completion completion(parse(OpenAiRoute::kCompletions, R"({"prompt":["abcd","efgh"],"n":2})"),
                        model, 1);
  const int64_t reused[] = {3, 4, 2, 0};
  for (size_t i = 0; i < 4; ++i) {
    GenerationEvent event = make_event('x', "x", FinishReason::kLength);
    event.reused_tokens = reused[i];
    completion.add(i, event);
  }
  EXPECT_EQ(completion.usage().prompt_tokens, 8U);
  EXPECT_EQ(completion.usage().cached_tokens, 3U) << "what no choice of a prompt had to compute";
  const json usage = json(completion.body({}, completion.usage()))["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
  Usage silent = completion.usage();
  silent.cached_tokens.reset();
  EXPECT_FALSE(json(completion.body({}, silent))["usage"].contains("prompt_tokens_details"));
}

TEST(OpenAiResponseTest, IdsSayWhichRouteTheyAreOf) {
  EXPECT_EQ(answer_id(OpenAiRoute::kChatCompletions, "7"), "chatcmpl-7");
  EXPECT_EQ(answer_id(OpenAiRoute::kCompletions, "7"), "cmpl-7");
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
  const ServedModel model(
      "m", &tokenizer, {.max_sequence_tokens = 1000, .vocab_size = kVocabulary},
      ChatTemplate(tokenizer.vocabulary().chat_template, tokenizer.vocabulary()));
  const auto generations = [&](OpenAiRoute route, const std::string& body) {
    return Completion(parse(route, body), model, 5).take_generations();
  };
  const auto text =
      generations(OpenAiRoute::kCompletions,
                  R"({"prompt":"ab","seed":9,"max_tokens":7,"stop":"x","ignore_eos":true})");
  ASSERT_EQ(text.size(), 1U);
  EXPECT_EQ(text[0].prompt, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(text[0].sampling.seed, 9U);
  EXPECT_EQ(text[0].max_tokens, 7);
  EXPECT_EQ(text[0].stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(text[0].ignore_end);
  const auto ids = generations(OpenAiRoute::kCompletions, R"({"prompt":[[7,8],[9]],"n":2})");
  ASSERT_EQ(ids.size(), 4U);
  EXPECT_EQ(ids[1].prompt, (std::vector<TokenId>{7, 8}));
  EXPECT_EQ(ids[2].prompt, (std::vector<TokenId>{9}));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(ids[i].sampling.seed, 5U + i);
  const auto chat = generations(OpenAiRoute::kChatCompletions,
                                R"({"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(tokenizer.decode(chat[0].prompt),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

// Returns the JSON of every chunk, in order.
std::vector<json> chunks_of(const std::string& stream) {
  std::vector<json> chunks;
  constexpr std::string_view kBegin = "data: ";
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_EQ(stream.substr(at, kBegin.size()), kBegin);
    const std::string text = stream.substr(at + kBegin.size(), end - at - kBegin.size());
    if (text != "[DONE]") chunks.push_back(json::parse(text));
    at = end + 2;
  }
  return chunks;
}

// The chunks of a stream, put together, must equal the answer that is not streamed.
TEST(AnswerStreamTest, SaysWhatTheWholeAnswerSays) {
  const Tokenizer tokenizer(byte_vocabulary());
  for (const bool logprobs : {false, true}) {
    for (const auto route : {OpenAiRoute::kChatCompletions, OpenAiRoute::kCompletions}) {
      const bool chat = route == OpenAiRoute::kChatCompletions;
      const ServedModel model("m", &tokenizer,
                              {.max_sequence_tokens = 100, .vocab_size = kVocabulary},
                              ChatTemplate("{{ messages[0].content }}", tokenizer.vocabulary()));
      std::string body = chat ? R"({"messages":[{"role":"user","content":"x"}],)"
                              : R"({"prompt":"ab","echo":true,)";
      body += R"("stream":true,"stream_options":{"include_usage":true})";
      if (logprobs) body += chat ? R"(,"logprobs":true)" : R"(,"logprobs":1)";
      Completion completion(parse(route, body + "}"), model, 1);
      const AnswerHead head{"i", 7, "m \"1\"", "fp"};
      AnswerStream stream(head, completion.request(), &tokenizer);
      std::string said = stream.begin(completion.choice(0));
      const auto take = [&](GenerationEvent event) {
        if (event.token && logprobs) event.logprobs = Logprobs{-0.5F, {{'J', -1.0F}}};
        completion.add(0, event);
        said += stream.piece(completion.choice(0), event);
      };
      GenerationEvent scored;
      scored.prompt_logprobs = {Logprobs{-0.25F, {{'b', -0.25F}}}};
      if (!chat && logprobs) take(scored);
      take(make_event('H', "H"));
      take(make_event('"', ""));
      take(make_event('!', "\"!"));
      take(make_event(kEnd, "", FinishReason::kStop));
      said += stream.end(completion.usage());
      EXPECT_TRUE(said.ends_with("data: [DONE]\n\n"));
      const json whole = json(completion.body(head, completion.usage()));
      const json& choice = whole["choices"][0];
      std::string text;
      json finish, tokens = json::array();
      const std::vector<json> chunks = chunks_of(said);
      for (const json& chunk : chunks) {
        EXPECT_EQ(chunk["id"], whole["id"]);
        EXPECT_EQ(chunk["model"], "m \"1\"");
        if (chunk["choices"].empty()) continue;
        EXPECT_TRUE(chunk.contains("usage") && chunk["usage"].is_null());
        const json& part = chunk["choices"][0];
        if (chat && part["delta"].contains("content")) text += part["delta"]["content"];
        if (!chat) text += part["text"];
        finish = part["finish_reason"];
        if (part["logprobs"].is_null()) continue;
        for (const json& token : part["logprobs"][chat ? "content" : "tokens"])
          tokens.push_back(token);
      }
      EXPECT_EQ(chunks.back()["usage"], whole["usage"]);
      EXPECT_EQ(finish, "stop");
      EXPECT_EQ(json(text), chat ? choice["message"]["content"] : choice["text"]);
      if (logprobs) {
        EXPECT_EQ(tokens, choice["logprobs"][chat ? "content" : "tokens"]);
      }
      EXPECT_EQ(tokens.size(), !logprobs ? 0U : chat ? 3U : 5U);
    }
  }
}

TEST(AnswerStreamTest, EveryPieceHasUsageWhereThatIsAskedFor) {
  const Tokenizer tokenizer(byte_vocabulary());
  const ServedModel model("m", &tokenizer, {.max_sequence_tokens = 100, .vocab_size = kVocabulary});
  const auto usages = [&](const std::string& options) {
    Completion completion(
        parse(OpenAiRoute::kCompletions,
              R"({"prompt":"abc","stream":true,"stream_options":)" + options + "}"),
        model, 1);
    AnswerStream stream({"i", 7, "m", "fp"}, completion.request(), &tokenizer,
                        completion.usage().prompt_tokens);
    std::string said;
    for (const auto& event : {make_event('H', "H"), make_event('i', "i", FinishReason::kLength)}) {
      completion.add(0, event);
      said += stream.piece(completion.choice(0), event);
    }
    std::vector<json> found;
    for (const json& chunk : chunks_of(said + stream.end(completion.usage())))
      found.push_back(chunk.value(json::json_pointer("/usage/total_tokens"), json()));
    return found;
  };
  EXPECT_EQ(usages(R"({"include_usage":true,"continuous_usage_stats":true})"),
            (std::vector<json>{4, 5, 5}));
  EXPECT_EQ(usages(R"({"include_usage":true})"), (std::vector<json>{nullptr, nullptr, 5}));
  EXPECT_EQ(usages(R"({"continuous_usage_stats":true})"), (std::vector<json>{nullptr, nullptr}))
      << "as vLLM: usage was not requested";
}

TEST(OpenAiResponseTest, LogprobsLeaveTheStopTokenOut) {
  const Tokenizer tokenizer(byte_vocabulary());
  const ServedModel model("m", &tokenizer, {.max_sequence_tokens = 100, .vocab_size = kVocabulary});
  Completion completion(
      parse(OpenAiRoute::kCompletions,
            R"({"prompt":"a","logprobs":0,"stop_token_ids":[33],"min_tokens":2})"),
      model, 1);
  const GenerationRequest generation = completion.take_generations().front();
  EXPECT_EQ(generation.stop_ids, std::vector<TokenId>{33});
  EXPECT_EQ(generation.min_tokens, 2);
  GenerationEvent last = make_event('!', "", FinishReason::kStop);
  for (GenerationEvent event : {make_event('H', "H"), last}) {
    event.logprobs = Logprobs{-0.5F, {}};
    completion.add(0, event);
  }
  const json body = json(completion.body({"i", 7, "m", "fp"}, completion.usage()));
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"], json::array({"H"}));
}

TEST(ServedModelTest, ContextErrorsSayTheMaximumAsClientsLookForIt) {
  const Tokenizer tokenizer(byte_vocabulary());
  const ServedModel model("m", &tokenizer, {.max_sequence_tokens = 10, .vocab_size = kVocabulary});
  for (const size_t bytes : {10, 1000}) {
    try {
      Completion(
          parse(OpenAiRoute::kCompletions, R"({"prompt":")" + std::string(bytes, 'x') + "\"}"),
          model, 0);
      ADD_FAILURE() << bytes;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.code_name(), "context_length_exceeded");
      EXPECT_NE(std::string(error.what()).find("maximum context length is 10 tokens"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(ServedModelTest, NamesTheFieldWhoseTokensThereAreNot) {
  const ServedModel model("m", nullptr, {.max_sequence_tokens = 10, .vocab_size = 9});
  const auto param = [&](const char* body) -> std::string {
    try {
      Completion(parse(OpenAiRoute::kCompletions, body), model, 0);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      return error.param();
    }
    return "none";
  };
  EXPECT_EQ(param(R"({"prompt":[1,9]})"), "prompt");
  EXPECT_EQ(param(R"({"prompt":[]})"), "prompt");
  EXPECT_EQ(param(R"({"prompt":[8],"logit_bias":{"8":1,"9":2}})"), "logit_bias.9");
  EXPECT_EQ(param(R"({"prompt":[8],"logit_bias":{"8":1}})"), "none");
}

TEST(ServedModelTest, RefusesWhatTheModelCannotDo) {
  const auto text = parse(OpenAiRoute::kCompletions, R"({"prompt":"abc"})");
  const auto ids = parse(OpenAiRoute::kCompletions, R"({"prompt":[1,2,3]})");
  const auto stop = parse(OpenAiRoute::kCompletions, R"({"prompt":[1,2,3],"stop":"x"})");
  const auto chat =
      parse(OpenAiRoute::kChatCompletions, R"({"messages":[{"role":"user","content":"x"}]})");
  const ServedModel without("m", nullptr, {.max_sequence_tokens = 4, .vocab_size = 9});
  EXPECT_EQ(refusal(without, text), "unsupported_value");
  EXPECT_EQ(refusal(without, chat), "unsupported_value");
  EXPECT_EQ(refusal(without, stop), "unsupported_value");
  EXPECT_EQ(refusal(without, ids), "none");
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(refusal(ServedModel("m", &tokenizer, {4, kVocabulary}), chat), "unsupported_value")
      << "no template";
  EXPECT_EQ(refusal(ServedModel("m", &tokenizer, {4, kVocabulary}), text), "none");
  EXPECT_EQ(refusal(ServedModel("m", &tokenizer, {3, kVocabulary}), text),
            "context_length_exceeded");
}

}  // namespace
}  // namespace spillway
