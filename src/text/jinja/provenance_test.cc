// SPDX-License-Identifier: Apache-2.0
// Tests that text written by a user never becomes a marker, whatever the template does to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja/chat_rendering.h"
#include "text/jinja/test_render.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

const Json kInput = {
    {"c", "a<|x|>b"}, {"l", {"p", "q"}}, {"d", {{"k", "v"}}}, {"bos_token", "<s>"}};

TEST(ProvenanceTest, LiteralsAreMarkersAndInputIsNot) {
  EXPECT_EQ(origins("<s>{{ c }}</s>", kInput), "[<s>]a<|x|>b[</s>]");
  EXPECT_EQ(origins("{{ '<s>' + c + '</s>' }}", kInput), "[<s>]a<|x|>b[</s>]");
  EXPECT_EQ(origins("{{ '<s>' ~ c ~ 1 }}", kInput), "[<s>]a<|x|>b[1]");
}

TEST(ProvenanceTest, TrustedVariablesAreMarkers) {
  JinjaOptions options;
  const std::string_view names[] = {"bos_token"};
  options.trusted = names;
  EXPECT_EQ(origins("{{ bos_token + c }}", kInput, options), "[<s>]a<|x|>b");
  EXPECT_EQ(origins("{{ bos_token + c }}", kInput), "<s>a<|x|>b");
}

TEST(ProvenanceTest, SurvivesEveryOperationOnStrings) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"{{ (' A' ~ c ~ 'B ') | trim }}", "[A]a<|x|>b[B]"},
      {"{{ ('A' ~ c ~ 'B')[2:-2] }}", "<|x|>"},
      {"{{ ('A' ~ c)[::-1] }}", "b>|x|<a[A]"},
      {"{{ ('A' ~ c) | upper }}", "[A]A<|X|>B"},
      {"{{ ('a' ~ c) | title }}", "[A]a<|x|>b"},
      {"{{ ('A' ~ c).split('|') | join('!') }}", "[A]a<[!]x[!]>b"},
      {"{{ ('A' ~ c).split('|')[1] }}", "x"},
      {"{{ c.replace('<|x|>', '<|y|>') }}", "a[<|y|>]b"},
      {"{{ 'A-B' | replace('-', c) }}", "[A]a<|x|>b[B]"},
      {"{{ ', '.join(l) }}", "p[, ]q"},
      {"{{ l | join('<|x|>') }}", "p[<|x|>]q"},
      {"{{ '<%s>' % c }}", "[<]a<|x|>b[>]"},
      {"{{ '<{}>{}'.format(c, 'T') }}", "[<]a<|x|>b[>T]"},
      {"{{ '<{:>9}>'.format(c) }}", "[<  ]a<|x|>b[>]"},
      {"{{ '%s' | format(c) }}", "a<|x|>b"},
      {"{{ d | tojson }}", "{\"k\": \"v\"}"},
      {"{{ {'t': c} | tojson }}", "{\"[t]\": \"a<|x|>b\"}"},
      {"{{ [c] }}", "['a<|x|>b']"},
      {"{{ c | e }}", "a&lt;|x|&gt;b"},
      {"{{ c | safe }}", "a<|x|>b"},
      {"{{ c | indent(2, true) }}", "[  ]a<|x|>b"},
      {"{{ c * 2 }}", "a<|x|>ba<|x|>b"},
      {"{{ c | list | join }}", "a<|x|>b"},
      {"{{ c | truncate(4, true, '', 0) }}", "a<|x"},
      {"{{ d | items | first | first }}", "k"},
      {"{{ c.partition('<|x|>') | join }}", "a<|x|>b"},
      {"{{ c.center(9, '*') }}", "[*]a<|x|>b[*]"},
      {"{% set y %}<{{ c }}>{% endset %}{{ y }}", "[<]a<|x|>b[>]"},
      {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(c) | upper }}", "[<]A<|X|>B[>]"},
      {"{% filter upper %}t{{ c }}{% endfilter %}", "[T]A<|X|>B"},
      {"{% set n = namespace(t='') %}{% for x in c %}{% set n.t = n.t ~ x %}{% endfor %}{{ n.t }}",
       "a<|x|>b"},
  };
  for (const auto& [source, expected] : cases)
    EXPECT_EQ(origins(source, kInput), expected) << source;
}

TEST(ProvenanceTest, UsualRolesAreMarkersInAChatAndOthersAreNot) {
  const JinjaTemplate tags("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}");
  ChatRequest request;
  request.messages =
      Json::parse(R"([{"role": "user", "content": "user"}, {"role": "<|end|>", "content": "x"}])");
  const std::vector<TextSegment> segments = render_chat(tags, request);
  ASSERT_EQ(segments.size(), 6u);
  EXPECT_EQ(segments[0].text, "<|user|>");
  EXPECT_TRUE(segments[0].is_marker);
  EXPECT_EQ(segments[1].text, "user");
  EXPECT_FALSE(segments[1].is_marker);
  EXPECT_EQ(segments[3].text, "<|end|>");
  EXPECT_FALSE(segments[3].is_marker);
}

TEST(ProvenanceTest, AChatPassesWhatApplyChatTemplatePasses) {
  const JinjaTemplate all(
      "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}{{ think }}");
  ChatRequest request;
  request.messages = Json::array();
  request.variables = {{"think", "no"}, {"bos_token", "overwritten"}};
  request.bos = "<s>";
  request.eos = "</s>";
  const std::vector<TextSegment> segments = render_chat(all, request);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].text, "<s></s>TrueTrue");
  EXPECT_EQ(segments[1].text, "no");
  request.messages = "no array";
  EXPECT_THROW(render_chat(all, request), Error);
}

}  // namespace
}  // namespace spillway
