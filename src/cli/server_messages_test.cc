// SPDX-License-Identifier: Apache-2.0
#include "cli/server_messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace spillway {
namespace {

const char* const kGarbage[] = {"",     "x",          "{",       "[1",     "\"",  "{\"a\":}",
                                "\xff", "{\"a\":1}x", "<html/>", "nul\0l", "{{}}"};

TEST(ServerMessagesTest, ReadsAListOfModels) {
  const auto models = parse_model_list(
      R"({"data": [{"id": "a", "max_model_len": 4096}, {"id": "b", "owned_by": "llamacpp"},
                   {"id": "c", "owned_by": "spillway"}]})");
  ASSERT_EQ(models.size(), 3U);
  EXPECT_EQ(models[0].id, "a");
  EXPECT_EQ(models[0].context, 4096);
  EXPECT_EQ(models[0].kind, ServerKind::kOther);
  EXPECT_EQ(models[1].context, std::nullopt);
  EXPECT_EQ(models[1].kind, ServerKind::kLlamaServer);
  EXPECT_EQ(models[2].kind, ServerKind::kSpillway);
}

TEST(ServerMessagesTest, AListThatIsNoneIsAnError) {
  for (const char* text : kGarbage) EXPECT_THROW(parse_model_list(text), Error) << text;
  for (const char* text : {"{}", "[]", "7", R"({"data": {}})", R"({"data": null})"})
    EXPECT_THROW(parse_model_list(text), Error) << text;
  EXPECT_TRUE(parse_model_list(R"({"data": [7, null, {}, {"id": 7}, {"id": ""}]})").empty());
  for (const char* length : {"-1", "0", "\"4096\"", "1e99", "18446744073709551615", "null", "[]"}) {
    const auto models = parse_model_list(std::string(R"({"data": [{"id": "a", "max_model_len": )") +
                                         length + "}]}");
    ASSERT_EQ(models.size(), 1U);
    EXPECT_EQ(models[0].context, std::nullopt) << length;
  }
}

TEST(ServerMessagesTest, SendsOnlyTheFlagsThatWereGiven) {
  SamplingOptions options;
  EXPECT_EQ(sampling_fields(options, ServerKind::kOther).dump(), "{}");
  EXPECT_EQ(unusual_flags(options), "");
  options.temperature = 0.8F;
  options.top_k = 40;
  options.min_p = 0.05F;
  options.repetition_penalty = 1.1F;
  options.logit_bias = {"42=-5"};
  options.stop = {"a", "b"};
  EXPECT_EQ(sampling_fields(options, ServerKind::kOther).dump(),
            R"({"temperature":0.8,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,)"
            R"("logit_bias":{"42":-5.0},"stop":["a","b"]})");
  EXPECT_EQ(unusual_flags(options), "--top-k, --min-p, --repetition-penalty");
}

TEST(ServerMessagesTest, AWindowIsForServersThatHaveOne) {
  SamplingOptions options;
  options.repetition_penalty = 1.5F;
  options.repetition_window = 64;
  EXPECT_THROW(sampling_fields(options, ServerKind::kOther), Error);
  EXPECT_EQ(sampling_fields(options, ServerKind::kLlamaServer).dump(),
            R"({"repeat_penalty":1.5,"repeat_last_n":64})");
  EXPECT_EQ(sampling_fields(options, ServerKind::kSpillway).dump(),
            R"({"repetition_penalty":1.5,"repeat_last_n":64})");
  options.repetition_window = 0;
  EXPECT_EQ(sampling_fields(options, ServerKind::kSpillway)["repeat_last_n"], -1);
}

TEST(ServerMessagesTest, ReadsEvents) {
  ServerEvent event = parse_server_event(R"({"choices": [{"delta": {"content": "é"}}]})");
  EXPECT_EQ(event.text, "é");
  EXPECT_TRUE(event.is_piece);
  EXPECT_FALSE(event.finish);
  event = parse_server_event(R"({"choices": [{"delta": {}, "finish_reason": "length"}]})");
  EXPECT_FALSE(event.is_piece);
  EXPECT_EQ(event.finish, FinishReason::kLength);
  event = parse_server_event(R"({"choices": [{"delta": {"reasoning_content": "Hm"}}]})");
  EXPECT_EQ(event.text, "");
  EXPECT_TRUE(event.is_piece);
  event = parse_server_event(
      R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})");
  EXPECT_EQ(event.prompt_tokens, 7U);
  EXPECT_EQ(event.completion_tokens, 3U);
  EXPECT_FALSE(event.cached_tokens);
  event = parse_server_event(
      R"({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 5}}})");
  EXPECT_EQ(event.cached_tokens, 5U);
  event = parse_server_event(R"({"choices": [], "usage": null})");
  EXPECT_FALSE(event.prompt_tokens || event.cached_tokens);
  EXPECT_EQ(parse_server_event(R"({"error": {"message": "no\nroom"}})").error, "no\\nroom");
  EXPECT_NE(parse_server_event(R"({"error": {}})").error, "");
  EXPECT_NE(parse_server_event(R"({"choices": [{"finish_reason": "error"}]})").error, "");
}

TEST(ServerMessagesTest, AnEventMayHaveAnyShape) {
  for (const char* text : kGarbage) EXPECT_THROW(parse_server_event(text), Error) << text;
  EXPECT_THROW(parse_server_event(std::string(100'000, '[')), Error);
  EXPECT_THROW(parse_server_event("[]"), Error);
  for (const char* text :
       {"{}", R"({"choices": 7})", R"({"choices": [7]})", R"({"choices": [null], "usage": null})",
        R"({"choices": [{"delta": [], "finish_reason": 7}]})", R"({"error": null})",
        R"({"choices": [{"delta": {"content": null}, "finish_reason": null}]})",
        R"({"usage": {"prompt_tokens": -1, "completion_tokens": 1e9}})", R"({"usage": []})"}) {
    const ServerEvent event = parse_server_event(text);
    EXPECT_EQ(event.text + event.error, "") << text;
    EXPECT_FALSE(event.finish || event.prompt_tokens || event.completion_tokens) << text;
  }
}

TEST(ServerMessagesTest, SaysWhyAServerRefuses) {
  EXPECT_EQ(parse_refusal(401, R"({"error": {"message": "no key"}})").message, "no key");
  EXPECT_EQ(parse_refusal(400, R"({"error": "bad"})").message, "bad");
  EXPECT_EQ(parse_refusal(400, R"({"object": "error", "message": "bad"})").message, "bad");
  EXPECT_EQ(parse_refusal(404, R"({"detail": "Not Found"})").message, "Not Found");
  EXPECT_EQ(parse_refusal(502, "<html>\n").message, "<html>\\n");
  EXPECT_EQ(parse_refusal(500, "").message, "it does not say why");
  EXPECT_EQ(parse_refusal(500, "{}").message, "it does not say why");
  EXPECT_LT(parse_refusal(500, std::string(100'000, 'x')).message.size(), 2000U);
}

TEST(ServerMessagesTest, KnowsWhenTheContextIsFull) {
  for (const char* body :
       {R"({"error": {"message": "x", "code": "context_length_exceeded"}})",
        R"({"error": {"code": 400, "message": "x", "type": "exceed_context_size_error"}})",
        R"({"error": {"message": "This model's maximum context length is 4096 tokens."}})"})
    EXPECT_TRUE(parse_refusal(400, body).context_is_full) << body;
  EXPECT_FALSE(parse_refusal(400, R"({"error": {"message": "x"}})").context_is_full);
}

}  // namespace
}  // namespace spillway
